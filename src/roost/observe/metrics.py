"""Metrics: a fold over the events of requests; of one process, or the sum over all HTTP workers.

Workers share their counts through prometheus_client's multiprocess mode: each has mapped files in
one directory, whoever is asked adds them up. What was counted stays there when a process is killed.
https://prometheus.github.io/client_python/multiprocess/
"""

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    Metric,
    generate_latest,
    values,
)
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.mmap_dict import MmapedDict
from prometheus_client.multiprocess import MultiProcessCollector

from roost.core.events import Delta, Ended, Event, Usage
from roost.core.outcome import OUTCOMES, Outcome
from roost.core.request import Envelope, RequestId

# Halving and doubling around what a small model on a CPU does; the ends catch the rest.
_LONG_S: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
_TOKEN_S: Final = (0.0005, 0.001, 0.002, 0.004, 0.008, 0.015, 0.03, 0.06, 0.12, 0.25, 0.5, 1, 2.5)


@dataclass(frozen=True, slots=True)
class EngineFigures:
    """What the engine said of itself last, and how well it is heard.

    num_malformed: messages of it that this process could not read, since it started.
    """

    is_alive: bool
    num_running: int = 0
    num_waiting: int = 0
    num_used_tokens: int = 0
    num_cached_tokens: int = 0
    num_kv_tokens: int = 0
    num_steps: int = 0
    num_gone: int = 0
    num_undelivered: int = 0
    num_malformed: int = 0
    num_disk_tokens: int = 0
    disk_read_tokens: int = 0
    num_drafts: int = 0
    num_right_drafts: int = 0


@dataclass(slots=True)
class _Times:
    arrival_s: float
    last_token_s: float | None = None


def share_counts(worker: int) -> None:
    """Keep what this process counts under the number of its worker, so that each life of it goes on
    from the last one's counts. Before the first Meter; the library has found the directory in
    PROMETHEUS_MULTIPROC_DIR when it was imported.
    """
    values.ValueClass = values.MultiProcessValue(lambda: worker)


def worker_has_ended(directory: Path, worker: int) -> None:
    """The process of that worker is dead, and so is what it had at hand."""
    # The library would have the file removed; a scrape that meets it half made again would fail.
    gauges = MmapedDict(str(directory / f"gauge_sum_{worker}.db"))
    for key, _, _ in list(gauges.read_all_values()):
        gauges.write_value(key, 0.0, 0.0)
    gauges.close()


class Meter:
    """Counts and times. It is told nothing that the ledger was not told. Health checks are not
    traffic, so they are not counted.
    """

    def __init__(self, directory: Path | None = None) -> None:
        """directory: where the counts of all workers are (see `share_counts`); None: this process
        is the only one.
        """
        self._directory = directory
        self._own = CollectorRegistry()
        self._live: dict[RequestId, _Times] = {}
        self._num_malformed = 0
        # Of tokens that are not counted yet: how many, and the gaps before them by bucket.
        self._num_new = 0
        self._gaps = [0] * (len(_TOKEN_S) + 1)
        self._gaps_s = 0.0
        self._figures = EngineFigures(is_alive=False)
        self._count_requests()
        self._time_requests()
        self._count_faults()

    def _count_requests(self) -> None:
        own = self._own
        self._ended = Counter(
            "roost_requests", "Requests that ended, by outcome.", ["outcome"], registry=own
        )
        for outcome in Outcome:  # a series that is there from the start can be alerted on
            self._ended.labels(outcome=outcome)
        self._in_flight = Gauge(
            "roost_requests_in_flight",
            "Requests that have not ended.",
            registry=own,
            multiprocess_mode="sum",
        )
        # What an earlier life of this worker had at hand ended with it.
        self._in_flight.set(0)
        self._prompt = Counter(
            "roost_prompt_tokens", "Prompt tokens of ended requests.", registry=own
        )
        self._generated = Counter(
            "roost_generation_tokens", "Generated tokens, as they come.", registry=own
        )
        self._cached = Counter(
            "roost_cached_tokens",
            "Of the prompt tokens of ended requests, those that the cache held.",
            registry=own,
        )
        self._retracted = Counter(
            "roost_retractions", "Times that a request gave up its memory.", registry=own
        )

    def _time_requests(self) -> None:
        own = self._own
        self._ttft = Histogram(
            "roost_time_to_first_token_seconds",
            "From arrival to the first token.",
            buckets=_LONG_S,
            registry=own,
        )
        self._itl = _Gaps(
            "roost_inter_token_latency_seconds",
            "Between tokens of one request.",
            buckets=_TOKEN_S,
            registry=own,
        )
        self._e2e = Histogram(
            "roost_request_latency_seconds",
            "From arrival to the end, of answers.",
            buckets=_LONG_S,
            registry=own,
        )
        self._queue = Histogram(
            "roost_queue_time_seconds",
            "From arrival in the engine to the start, of answers.",
            buckets=_LONG_S,
            registry=own,
        )

    def _count_faults(self) -> None:
        own = self._own
        self._faults = Counter(
            "roost_server_faults", "Endings that are the server's fault.", registry=own
        )
        self._late = Counter(
            "roost_late_outputs",
            "Outputs for requests that had ended; `unknown` can be a routing fault.",
            ["cause"],
            registry=own,
        )
        for cause in ("client", "health", "ours", "unknown"):
            self._late.labels(cause=cause)
        self._violations = Counter(
            "roost_protocol_violations", "Events that the lifecycle forbids.", registry=own
        )
        self._malformed = Counter(
            "roost_malformed_messages", "Messages that could not be read.", registry=own
        )

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
            self._faults.inc(OUTCOMES[ended.outcome].is_server_fault)
            self._ended.labels(outcome=ended.outcome).inc()

    def _tokens(self, times: _Times, num_tokens: int, now_s: float) -> None:
        self._num_new += num_tokens
        if times.last_token_s is None:
            self._ttft.observe(now_s - times.arrival_s)
        else:
            # Tokens that came together share the time since the last ones.
            gap_s = now_s - times.last_token_s
            self._gaps[bisect_left(_TOKEN_S, gap_s / num_tokens)] += num_tokens
            self._gaps_s += gap_s
        times.last_token_s = now_s

    def _count_tokens(self) -> None:
        """Count those that came since the last time. A count is a write to a mapped file, too dear
        for each token.
        """
        if self._num_new:
            self._generated.inc(self._num_new)
            self._itl.add(self._gaps, self._gaps_s)
            self._num_new, self._gaps, self._gaps_s = 0, [0] * len(self._gaps), 0.0

    def _ending(self, times: _Times, ended: Ended, now_s: float) -> None:
        usage: Usage = ended.usage
        self._count_tokens()
        self._prompt.inc(usage.num_prompt_tokens)
        for counter, number in (
            (self._faults, int(OUTCOMES[ended.outcome].is_server_fault)),
            (self._cached, usage.num_cached_tokens),
            (self._retracted, usage.num_retractions),
        ):
            if number:
                counter.inc(number)
        if OUTCOMES[ended.outcome].is_answer:
            self._e2e.observe(now_s - times.arrival_s)
            self._queue.observe(usage.queue_s)
        # The last: whoever finds it counted finds all of it counted.
        self._ended.labels(outcome=ended.outcome).inc()

    def late(self, cause: str) -> None:
        """One output came for a request that had ended, or was never here."""
        self._late.labels(cause=cause).inc()

    def violation(self) -> None:
        """The engine said what the lifecycle forbids."""
        self._violations.inc()

    def engine(self, figures: EngineFigures) -> None:
        """How the engine fares, as this process hears it; to be told a few times a second. What is
        said of tokens since the last time is counted with it.
        """
        self._count_tokens()
        self._malformed.inc(figures.num_malformed - self._num_malformed)
        self._num_malformed = figures.num_malformed
        self._figures = figures

    def exposition(self) -> bytes:
        """Everything, in Prometheus' text format 0.0.4: of all workers what is counted, and of the
        engine what this one has heard.
        """
        self._count_tokens()
        counted = self._own
        if self._directory is not None:
            counted = CollectorRegistry()
            MultiProcessCollector(counted, str(self._directory))
        heard = CollectorRegistry()
        heard.register(_Heard(self._figures))
        return generate_latest(counted) + generate_latest(heard)


class _Gaps(Histogram):
    """The times between tokens: many at a time."""

    def add(self, gaps: list[int], total_s: float) -> None:
        """gaps: how many more of each bucket. total_s: their sum."""
        self._sum.inc(total_s)
        for bucket, number in zip(self._buckets, gaps, strict=True):
            if number:
                bucket.inc(number)


class _Heard:
    """The engine's figures: of one engine, so no sum over those who hear it."""

    def __init__(self, figures: EngineFigures) -> None:
        self._figures = figures

    def collect(self) -> Iterator[Metric]:
        figures = self._figures
        for name, text, value in (
            ("up", "1 while the engine is heard.", figures.is_alive),
            ("running_requests", "Requests that run.", figures.num_running),
            ("waiting_requests", "Requests in the queue.", figures.num_waiting),
            ("kv_used_tokens", "KV slots in use.", figures.num_used_tokens),
            (
                "kv_cached_tokens",
                "KV slots that the prefix cache keeps, in use or not.",
                figures.num_cached_tokens,
            ),
            ("kv_tokens", "KV slots there are.", figures.num_kv_tokens),
            ("disk_kv_tokens", "KV slots that are kept on disk.", figures.num_disk_tokens),
            (
                "disk_kv_read_tokens",
                "KV slots that came back from disk since it started.",
                figures.disk_read_tokens,
            ),
            ("steps", "Steps since it started.", figures.num_steps),
            ("draft_tokens", "Tokens that speculation tried.", figures.num_drafts),
            (
                "right_draft_tokens",
                "Tokens that speculation tried and that were right.",
                figures.num_right_drafts,
            ),
            ("gone_workers", "Lives of HTTP workers that it lost.", figures.num_gone),
            ("undelivered_outputs", "Outputs that reached nobody.", figures.num_undelivered),
        ):
            yield GaugeMetricFamily(f"roost_engine_{name}", text, value=float(value))
