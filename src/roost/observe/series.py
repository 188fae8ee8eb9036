"""Every series of /metrics that is counted, as data: its words, and its place in a row of numbers.

The values that a label can have are known beforehand, so each series exists from the start and can
be alerted on.
"""

from bisect import bisect_left
from dataclasses import dataclass
from typing import Final

from roost.core.outcome import Outcome

# Halving and doubling around what a small model on a CPU does; the ends catch the rest.
_LONG_S: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
_TOKEN_S: Final = (0.0005, 0.001, 0.002, 0.004, 0.008, 0.015, 0.03, 0.06, 0.12, 0.25, 0.5, 1, 2.5)


@dataclass(frozen=True, slots=True)
class Count:
    """A number in a place for each of `values` (of `label`), or in one place where there is none.

    is_live: it says how things are now, not what has happened; with its process it is over.
    """

    at: int
    name: str
    help: str
    label: str = ""
    values: tuple[str, ...] = ()
    is_live: bool = False

    @property
    def width(self) -> int:
        return max(1, len(self.values))

    def place(self, value: str) -> int:
        """Where the number of this value of the label is."""
        return self.at + self.values.index(value)


@dataclass(frozen=True, slots=True)
class Spread:
    """How often a value fell into each bucket, and its sum: a place for each of `bounds`, one for
    what is beyond them, one for the sum.
    """

    at: int
    name: str
    help: str
    bounds: tuple[float, ...]

    @property
    def width(self) -> int:
        return len(self.bounds) + 2

    @property
    def sum_at(self) -> int:
        return self.at + len(self.bounds) + 1

    def place(self, value: float) -> int:
        """The bucket of a value: the first whose bound is not below it."""
        return self.at + bisect_left(self.bounds, value)


REQUESTS: Final = Count(
    0, "roost_requests_total", "Requests that ended, by outcome.", "outcome", tuple(Outcome)
)
FAULTS: Final = Count(
    REQUESTS.at + REQUESTS.width, "roost_server_faults_total", "Endings by the server's fault."
)
IN_FLIGHT: Final = Count(
    FAULTS.at + 1, "roost_requests_in_flight", "Requests that have not ended.", is_live=True
)
PROMPT: Final = Count(
    IN_FLIGHT.at + 1, "roost_prompt_tokens_total", "Prompt tokens of ended requests."
)
GENERATED: Final = Count(
    PROMPT.at + 1, "roost_generation_tokens_total", "Generated tokens, as they come."
)
CACHED: Final = Count(
    GENERATED.at + 1, "roost_cached_tokens_total", "Prompt tokens that the cache held."
)
RETRACTED: Final = Count(
    CACHED.at + 1, "roost_retractions_total", "Times that a request gave up its memory."
)
LATE: Final = Count(
    RETRACTED.at + 1,
    "roost_late_outputs_total",
    "Outputs for requests that had ended; `unknown` can be a routing fault.",
    "cause",
    ("client", "health", "ours", "unknown"),
)
VIOLATIONS: Final = Count(
    LATE.at + LATE.width, "roost_protocol_violations_total", "Events that the lifecycle forbids."
)
MALFORMED: Final = Count(
    VIOLATIONS.at + 1, "roost_malformed_messages_total", "Messages that could not be read."
)
TTFT: Final = Spread(
    MALFORMED.at + 1,
    "roost_time_to_first_token_seconds",
    "From arrival to the first token.",
    _LONG_S,
)
ITL: Final = Spread(
    TTFT.at + TTFT.width,
    "roost_inter_token_latency_seconds",
    "Between tokens of one request.",
    _TOKEN_S,
)
E2E: Final = Spread(
    ITL.at + ITL.width,
    "roost_request_latency_seconds",
    "From arrival to the end, of answers.",
    _LONG_S,
)
QUEUE: Final = Spread(
    E2E.at + E2E.width,
    "roost_queue_time_seconds",
    "From arrival in the engine to the start, of answers.",
    _LONG_S,
)

SERIES: Final[tuple[Count | Spread, ...]] = (
    REQUESTS,
    FAULTS,
    IN_FLIGHT,
    PROMPT,
    GENERATED,
    CACHED,
    RETRACTED,
    LATE,
    VIOLATIONS,
    MALFORMED,
    TTFT,
    ITL,
    E2E,
    QUEUE,
)
WIDTH: Final = QUEUE.at + QUEUE.width
LIVE: Final = tuple(s.at for s in SERIES if isinstance(s, Count) and s.is_live)
