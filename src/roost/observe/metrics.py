"""Metrics: a fold over the events of requests, in a registry of this process's own."""

from dataclasses import dataclass
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from roost.core.events import Delta, Ended, Event, Usage
from roost.core.outcome import OUTCOMES, Outcome
from roost.core.request import Envelope, RequestId

# Halving and doubling around what a small model on a CPU does; the ends catch the rest.
_LONG_S: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
_TOKEN_S: Final = (0.0005, 0.001, 0.002, 0.004, 0.008, 0.015, 0.03, 0.06, 0.12, 0.25, 0.5, 1, 2.5)


@dataclass(frozen=True, slots=True)
class EngineFigures:
    """What the engine said of itself last, and how well it is heard."""

    is_alive: bool
    num_running: int = 0
    num_waiting: int = 0
    num_used_tokens: int = 0
    num_kv_tokens: int = 0
    num_steps: int = 0
    num_malformed: int = 0


@dataclass(slots=True)
class _Times:
    arrival_s: float
    last_token_s: float | None = None


class Meter:
    """Counts and times. It is told nothing that the ledger was not told. Health checks are not
    traffic, so they are not counted.
    """

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._live: dict[RequestId, _Times] = {}
        self._count_requests()
        self._count_engine()

    def _count_requests(self) -> None:
        registry = self._registry
        self._ended = Counter(
            "roost_requests", "Requests that ended, by outcome.", ["outcome"], registry=registry
        )
        for outcome in Outcome:  # a series that is there from the start can be alerted on
            self._ended.labels(outcome=outcome)
        self._faults = Counter(
            "roost_server_faults", "Endings that are the server's fault.", registry=registry
        )
        self._in_flight = Gauge(
            "roost_requests_in_flight", "Requests that have not ended.", registry=registry
        )
        self._prompt = Counter(
            "roost_prompt_tokens", "Prompt tokens of ended requests.", registry=registry
        )
        self._generated = Counter(
            "roost_generation_tokens", "Generated tokens, as they come.", registry=registry
        )
        self._cached = Counter(
            "roost_cached_tokens", "Prompt tokens that the cache held.", registry=registry
        )
        self._retracted = Counter(
            "roost_retractions", "Times that a request gave up its memory.", registry=registry
        )
        self._ttft = Histogram(
            "roost_time_to_first_token_seconds",
            "From arrival to the first token.",
            buckets=_LONG_S,
            registry=registry,
        )
        self._itl = Histogram(
            "roost_inter_token_latency_seconds",
            "Between tokens of one request.",
            buckets=_TOKEN_S,
            registry=registry,
        )
        self._e2e = Histogram(
            "roost_request_latency_seconds",
            "From arrival to the end, of answers.",
            buckets=_LONG_S,
            registry=registry,
        )
        self._queue = Histogram(
            "roost_queue_time_seconds",
            "From arrival in the engine to the start, of answers.",
            buckets=_LONG_S,
            registry=registry,
        )

    def _count_engine(self) -> None:
        registry = self._registry
        self._late = Counter(
            "roost_late_outputs",
            "Outputs for requests that had ended; `unknown` can be a routing fault.",
            ["cause"],
            registry=registry,
        )
        for cause in ("client", "health", "ours", "unknown"):
            self._late.labels(cause=cause)
        self._violations = Counter(
            "roost_protocol_violations", "Events that the lifecycle forbids.", registry=registry
        )
        self._malformed = Gauge(
            "roost_malformed_messages", "Messages that could not be read.", registry=registry
        )
        self._up = Gauge("roost_engine_up", "1 while the engine is heard.", registry=registry)
        self._running = Gauge(
            "roost_engine_running_requests", "Requests that run.", registry=registry
        )
        self._waiting = Gauge(
            "roost_engine_waiting_requests", "Requests in the queue.", registry=registry
        )
        self._used = Gauge("roost_engine_kv_used_tokens", "KV slots in use.", registry=registry)
        self._size = Gauge("roost_engine_kv_tokens", "KV slots there are.", registry=registry)
        self._steps = Gauge("roost_engine_steps", "Steps since it started.", registry=registry)

    def opened(self, envelope: Envelope) -> None:
        """A request has come in; it will end."""
        if not envelope.is_health_check:
            self._live[envelope.rid] = _Times(envelope.arrival_s)
            self._in_flight.set(len(self._live))

    def see(self, envelope: Envelope, event: Event, now_s: float) -> None:
        """An event of a request that lives."""
        times = self._live.get(envelope.rid)
        if times is None:
            return
        if isinstance(event, Delta) and event.token_ids:
            self._tokens(times, len(event.token_ids), now_s)
        elif isinstance(event, Ended):
            del self._live[envelope.rid]
            self._in_flight.set(len(self._live))
            self._ending(times, event, now_s)

    def refused(self, envelope: Envelope, ended: Ended) -> None:
        """A request that ended before it was taken in (its rid belongs to another)."""
        if not envelope.is_health_check:
            self._ended.labels(outcome=ended.outcome).inc()

    def _tokens(self, times: _Times, num_tokens: int, now_s: float) -> None:
        self._generated.inc(num_tokens)
        if times.last_token_s is None:
            self._ttft.observe(now_s - times.arrival_s)
        else:
            # Tokens that came together share the time since the last ones.
            for _ in range(num_tokens):
                self._itl.observe((now_s - times.last_token_s) / num_tokens)
        times.last_token_s = now_s

    def _ending(self, times: _Times, ended: Ended, now_s: float) -> None:
        usage: Usage = ended.usage
        self._ended.labels(outcome=ended.outcome).inc()
        self._faults.inc(OUTCOMES[ended.outcome].is_server_fault)
        self._prompt.inc(usage.num_prompt_tokens)
        self._cached.inc(usage.num_cached_tokens)
        self._retracted.inc(usage.num_retractions)
        if OUTCOMES[ended.outcome].is_answer:
            self._e2e.observe(now_s - times.arrival_s)
            self._queue.observe(usage.queue_s)

    def late(self, cause: str) -> None:
        """One output came for a request that had ended, or was never here."""
        self._late.labels(cause=cause).inc()

    def violation(self) -> None:
        self._violations.inc()

    def engine(self, figures: EngineFigures) -> None:
        """How the engine fares."""
        self._up.set(figures.is_alive)
        self._malformed.set(figures.num_malformed)
        self._running.set(figures.num_running)
        self._waiting.set(figures.num_waiting)
        self._used.set(figures.num_used_tokens)
        self._size.set(figures.num_kv_tokens)
        self._steps.set(figures.num_steps)

    def exposition(self) -> bytes:
        """Everything, in Prometheus' text format 0.0.4."""
        return generate_latest(self._registry)
