"""Calls on the whole server: what an operator, or a client that manages its requests, may ask.

The engine is the one place where each of them is carried out, so it makes no difference which HTTP
worker took the call. Those that concern what a worker alone knows (`Broadcast`) are passed on to
all of them, and the answer comes when all have done it.
"""

from typing import Literal

import msgspec

from roost.core.request import RequestId

PauseMode = Literal["abort", "retract", "in_place"]
LogLevel = Literal["debug", "info", "warning", "error"]


class Abort(msgspec.Struct, frozen=True, array_like=True, tag="abort"):
    """End a request by exactly this rid, or every one of the call of that name; None: everything.

    message: what its client reads; "": the usual words. Also what is still being tokenised ends.
    """

    name: RequestId | None
    message: str = ""


class FlushCache(msgspec.Struct, frozen=True, array_like=True, tag="flush_cache"):
    """Forget every prefix; what live requests hold goes when they end, and is not found before.

    timeout_s: wait so long until nothing lives, and refuse if something still does; None: at once.
    """

    timeout_s: float | None = None


class Pause(msgspec.Struct, frozen=True, array_like=True, tag="pause"):
    """Plan no more steps until Resume; what comes in waits.

    mode: what runs is aborted, goes back to the queue and gives its memory back, or stays.
    """

    mode: PauseMode


class Resume(msgspec.Struct, frozen=True, array_like=True, tag="resume"):
    """Go on after a Pause. Harmless without one."""


class OpenSession(msgspec.Struct, frozen=True, array_like=True, tag="open_session"):
    """Open a session under an id that is free.

    capacity_chars: most characters that the prompt of a turn may have; 0: no limit of its own.
    timeout_s: idle for so long, it is closed; None: the server's.
    """

    session_id: str
    capacity_chars: int = 0
    timeout_s: float | None = None


class CloseSession(msgspec.Struct, frozen=True, array_like=True, tag="close_session"):
    """Close a session: turns that run end as they will, those that wait are refused."""

    session_id: str


class ListSessions(msgspec.Struct, frozen=True, array_like=True, tag="list_sessions"):
    """Every session with its tree of turns; the answer's `result` is JSON."""


class SetLogLevel(msgspec.Struct, frozen=True, array_like=True, tag="set_log_level"):
    """The least level that is logged, in every process."""

    level: LogLevel


Broadcast = Abort | SetLogLevel
Call = Abort | FlushCache | Pause | Resume | OpenSession | CloseSession | ListSessions | SetLogLevel
