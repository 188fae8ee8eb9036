"""Metrics: a fold over the events of requests, summed over all HTTP workers when asked for."""

from dataclasses import dataclass

from roost.core.events import Delta, Ended, Event, Usage
from roost.core.outcome import OUTCOMES
from roost.core.request import Envelope, RequestId
from roost.observe import series
from roost.observe.exposition import Figure, exposition
from roost.observe.sheet import Sheet


@dataclass(frozen=True, slots=True)
class EngineFigures:
    """What the engine said of itself last, and how well it is heard.

    num_malformed: messages of it that this process could not read, since it started.
    """

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

    def __init__(self, sheet: Sheet | None = None, worker: int = 0) -> None:
        """Count in the row of `worker`, going on from what its earlier lives have counted.

        sheet: None for one of its own.
        """
        self._sheet = Sheet.private() if sheet is None else sheet
        self._sheet.has_ended(worker)
        self._row = self._sheet.row(worker)
        self._live: dict[RequestId, _Times] = {}
        self._num_malformed = 0
        self._figures = EngineFigures(is_alive=False)

    def opened(self, envelope: Envelope) -> None:
        """A request has come in; it will end."""
        if not envelope.is_health_check:
            self._live[envelope.rid] = _Times(envelope.arrival_s)
            self._row[series.IN_FLIGHT.at] = len(self._live)

    def see(self, envelope: Envelope, event: Event, now_s: float) -> None:
        """An event of a request that lives."""
        times = self._live.get(envelope.rid)
        if times is None:
            return
        if isinstance(event, Delta) and event.token_ids:
            self._tokens(times, len(event.token_ids), now_s)
        elif isinstance(event, Ended):
            del self._live[envelope.rid]
            self._row[series.IN_FLIGHT.at] = len(self._live)
            self._ending(times, event, now_s)

    def refused(self, envelope: Envelope, ended: Ended) -> None:
        """A request that ended before it was taken in (its rid belongs to another)."""
        if not envelope.is_health_check:
            self._count_ending(ended)

    def _tokens(self, times: _Times, num_tokens: int, now_s: float) -> None:
        row = self._row
        row[series.GENERATED.at] += num_tokens
        if times.last_token_s is None:
            self._observe(series.TTFT, now_s - times.arrival_s)
        else:
            # Tokens that came together share the time since the last ones.
            elapsed_s = now_s - times.last_token_s
            row[series.ITL.place(elapsed_s / num_tokens)] += num_tokens
            row[series.ITL.sum_at] += elapsed_s
        times.last_token_s = now_s

    def _ending(self, times: _Times, ended: Ended, now_s: float) -> None:
        usage: Usage = ended.usage
        row = self._row
        row[series.PROMPT.at] += usage.num_prompt_tokens
        row[series.CACHED.at] += usage.num_cached_tokens
        row[series.RETRACTED.at] += usage.num_retractions
        if OUTCOMES[ended.outcome].is_answer:
            self._observe(series.E2E, now_s - times.arrival_s)
            self._observe(series.QUEUE, usage.queue_s)
        # The last: who finds it counted finds all of it counted.
        self._count_ending(ended)

    def _count_ending(self, ended: Ended) -> None:
        self._row[series.FAULTS.at] += OUTCOMES[ended.outcome].is_server_fault
        self._row[series.REQUESTS.place(ended.outcome)] += 1

    def _observe(self, spread: series.Spread, value: float) -> None:
        self._row[spread.place(value)] += 1
        self._row[spread.sum_at] += value

    def late(self, cause: str) -> None:
        """One output came for a request that had ended, or was never here."""
        self._row[series.LATE.place(cause)] += 1

    def violation(self) -> None:
        """The engine said what the lifecycle forbids."""
        self._row[series.VIOLATIONS.at] += 1

    def engine(self, figures: EngineFigures) -> None:
        """How the engine fares, as this process hears it."""
        self._row[series.MALFORMED.at] += figures.num_malformed - self._num_malformed
        self._num_malformed = figures.num_malformed
        self._figures = figures

    def exposition(self) -> bytes:
        """Everything, in Prometheus' text format 0.0.4: of all workers what is counted, and of the
        engine what this one has heard.
        """
        return exposition(series.SERIES, self._sheet.totals(), _engine(self._figures))


def _engine(figures: EngineFigures) -> tuple[Figure, ...]:
    return (
        Figure("roost_engine_up", "1 while the engine is heard.", float(figures.is_alive)),
        Figure("roost_engine_running_requests", "Requests that run.", float(figures.num_running)),
        Figure(
            "roost_engine_waiting_requests", "Requests in the queue.", float(figures.num_waiting)
        ),
        Figure("roost_engine_kv_used_tokens", "KV slots in use.", float(figures.num_used_tokens)),
        Figure("roost_engine_kv_tokens", "KV slots there are.", float(figures.num_kv_tokens)),
        Figure("roost_engine_steps", "Steps since it started.", float(figures.num_steps)),
    )
