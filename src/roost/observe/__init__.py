"""The observe room: what people and machines can see of requests, as a fold over their events.

Takes the envelopes and events that the ledger is told anyway, and the time.
Gives one log line an ending, at its table's level, and metrics in Prometheus' text format.
"""

from roost.observe.log import EndingLog, LogFormat, configure_logging, set_log_level
from roost.observe.metrics import EngineFigures, Meter
from roost.observe.sheet import Sheet
from roost.observe.trace import trace_of

__all__ = [
    "EndingLog",
    "EngineFigures",
    "LogFormat",
    "Meter",
    "Sheet",
    "configure_logging",
    "set_log_level",
    "trace_of",
]
