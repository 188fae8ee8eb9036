"""How a request can end. One table, and nothing else decides a status, a level or a label."""

import enum
import logging
from dataclasses import dataclass
from typing import Final, Literal


class Outcome(enum.StrEnum):
    """Every ending there is; the value is its metric label and its name on the wire."""

    STOP = "stop"
    LENGTH = "length"
    TOOL_CALLS = "tool_calls"
    CLIENT_DISCONNECTED = "client_disconnected"
    CLIENT_CANCELLED = "client_cancelled"
    INVALID_REQUEST = "invalid_request"
    QUEUE_FULL = "queue_full"
    DEADLINE = "deadline"
    SHUTTING_DOWN = "shutting_down"
    ENGINE_FAULT = "engine_fault"


FinishType = Literal["stop", "length", "abort"]


@dataclass(frozen=True, slots=True)
class Ending:
    """What follows from an outcome.

    http_status: before the first byte (499 is never sent: it is for the log and the metrics).
    finish: the native API's `finish_reason.type`. is_answer: 200 with what was generated.
    """

    whose: str
    http_status: int
    finish: FinishType
    is_answer: bool
    log_level: int
    is_server_fault: bool = False


OUTCOMES: Final[dict[Outcome, Ending]] = {
    Outcome.STOP: Ending("model", 200, "stop", True, logging.INFO),
    Outcome.LENGTH: Ending("model / limit", 200, "length", True, logging.INFO),
    Outcome.TOOL_CALLS: Ending("model", 200, "stop", True, logging.INFO),
    Outcome.CLIENT_DISCONNECTED: Ending("client", 499, "abort", False, logging.INFO),
    Outcome.CLIENT_CANCELLED: Ending("client", 200, "abort", True, logging.INFO),
    Outcome.INVALID_REQUEST: Ending("client", 400, "abort", False, logging.INFO),
    Outcome.QUEUE_FULL: Ending("load", 503, "abort", False, logging.WARNING),
    Outcome.DEADLINE: Ending("limit", 504, "abort", False, logging.WARNING),
    Outcome.SHUTTING_DOWN: Ending("operator", 503, "abort", False, logging.WARNING),
    Outcome.ENGINE_FAULT: Ending("server", 500, "abort", False, logging.ERROR, True),
}
