"""Logs: one line an ending, at the level of the outcome table; for people, or as JSON."""

import logging
import sys
from collections.abc import MutableMapping
from typing import Literal, TextIO

from roost.core.events import Ended
from roost.core.outcome import OUTCOMES
from roost.core.request import Envelope
from roost.observe.lines import ConsoleLines, JsonLines
from roost.observe.trace import trace_id_of

LogFormat = Literal["console", "json"]

# A message may hold what a client sent; a log line stays a line.
_MAX_MESSAGE_CHARS = 300


def configure_logging(level: str, log_format: LogFormat, stream: TextIO | None = None) -> None:
    """Send every logger of this process to `stream` (standard error), in one format.

    level: debug, info, warning or error. To be called once, by the process's entry.
    """
    out = sys.stderr if stream is None else stream
    handler = logging.StreamHandler(out)
    is_json = log_format == "json"
    handler.setFormatter(JsonLines() if is_json else ConsoleLines(has_colours=out.isatty()))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    set_log_level(level)


def set_log_level(level: str) -> None:
    """From now on show what is at least of `level`: debug, info, warning or error."""
    logging.getLogger().setLevel(level.upper())


class EndingLog:
    """One line for each request that ends. Health checks are no traffic: DEBUG at most."""

    def __init__(self, logger: logging.Logger | None = None) -> None:
        self._logger = logging.getLogger("roost.requests") if logger is None else logger

    def ended(self, envelope: Envelope, ended: Ended, now_s: float) -> None:
        """Write the line of this ending."""
        level = OUTCOMES[ended.outcome].log_level
        if envelope.is_health_check:
            level = logging.DEBUG
        if not self._logger.isEnabledFor(level):
            return
        usage = ended.usage
        fields: MutableMapping[str, object] = {
            "rid": envelope.rid,
            "outcome": str(ended.outcome),
            "status": ended.http_status,
            "prompt_tokens": usage.num_prompt_tokens,
            "completion_tokens": usage.num_completion_tokens,
            "cached_tokens": usage.num_cached_tokens,
            "queue_s": round(usage.queue_s, 4),
            "total_s": round(now_s - envelope.arrival_s, 4),
        }
        if ended.code:
            fields["code"] = ended.code
        if ended.message:
            fields["reason"] = ended.message[:_MAX_MESSAGE_CHARS]
        if envelope.trace:
            fields["trace_id"] = trace_id_of(envelope.trace)
        self._logger.log(level, "request ended", extra=fields)
