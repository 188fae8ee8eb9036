"""The observe room: what people and machines can see of requests, as a fold over their events.

Takes the envelopes and events that the ledger is told anyway, and the time.
Gives one log line an ending, at its table's level, and metrics in Prometheus' text format.
"""

from typing import TYPE_CHECKING

from roost.observe.log import EndingLog, LogFormat, configure_logging, set_log_level
from roost.observe.trace import trace_of

if TYPE_CHECKING:
    from roost.observe.metrics import EngineFigures, Meter, share_counts, worker_has_ended

__all__ = [
    "EndingLog",
    "EngineFigures",
    "LogFormat",
    "Meter",
    "configure_logging",
    "set_log_level",
    "share_counts",
    "trace_of",
    "worker_has_ended",
]


def __getattr__(name: str) -> object:
    # Late: the engine's process and the supervisor log, and have no metrics of their own.
    if name in ("EngineFigures", "Meter", "share_counts", "worker_has_ended"):
        from roost.observe import metrics

        return getattr(metrics, name)
    raise AttributeError(f"module 'roost.observe' has no attribute {name!r}")
