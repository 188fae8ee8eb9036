"""Calls on the whole engine, and the answers that must wait for something."""

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import assert_never

import msgspec

from roost.core.calls import (
    Abort,
    Broadcast,
    CloseSession,
    FlushCache,
    ListSessions,
    OpenSession,
    Pause,
    Resume,
    SetLogLevel,
)
from roost.core.errors import DeadlinePassed, RequestError, ShuttingDown
from roost.core.events import Ended
from roost.core.outcome import Outcome
from roost.core.plan import PAGE_TOKENS
from roost.core.request import Origin
from roost.sched import Addressed, Scheduler
from roost.wire.messages import (
    Audit,
    Audited,
    Control,
    ControlDone,
    Load,
    Noted,
    Notice,
    ToWorker,
)
from roost.worker.broadcasts import Broadcasts, Closed
from roost.worker.outbox import Outbox


def load_of(scheduler: Scheduler, outbox: Outbox) -> Load:
    load = scheduler.load()
    return Load(
        num_running=load.num_running,
        num_waiting=load.num_waiting,
        num_used_tokens=load.num_used_pages * PAGE_TOKENS,
        num_cached_tokens=load.num_cached_pages * PAGE_TOKENS,
        num_kv_tokens=load.num_pages * PAGE_TOKENS,
        num_steps=load.num_steps,
        generated_tokens_total=load.generated_tokens_total,
        num_drafts=load.num_drafts,
        num_right_drafts=load.num_right_drafts,
        num_gone=outbox.num_gone,
        num_undelivered=outbox.num_undelivered,
        num_disk_tokens=load.num_stored_pages * PAGE_TOKENS,
        disk_read_tokens_total=load.num_fetched_pages * PAGE_TOKENS,
    )


@dataclass(frozen=True, slots=True)
class _Flush:
    """A flush that waits until nothing lives."""

    caller: Origin
    call_id: str
    until_s: float


class ControlDesk:
    """Obeys calls, and keeps what is to be told about them until the loop takes it.

    What a call says to requests is given back at once; what `take` gives is told behind that, so
    that who hears that all was aborted finds it so. A call that the scheduler refuses, or that
    cannot be done now, is answered as such and changes nothing.

    is_paused: no steps are planned. log_level: what was set last; "": nothing so far.
    """

    def __init__(
        self, scheduler: Scheduler, set_log_level: Callable[[str], None], engine_epoch: int
    ) -> None:
        self.is_paused = False
        self.log_level = ""
        self._scheduler = scheduler
        self._set_log_level = set_log_level
        self._broadcasts = Broadcasts(engine_epoch)
        self._flush: _Flush | None = None
        self._told: list[tuple[Origin, ToWorker]] = []

    def obey(self, message: Control, workers: Collection[Origin], now_s: float) -> list[Addressed]:
        """Do what a call asks → what is said to the requests that it touched.

        workers: those that a broadcast goes to.
        """
        said: list[Addressed] = []
        try:
            match message.call:
                case Abort() as call:
                    said = self._abort(message, call, workers, now_s)
                case SetLogLevel(level=level) as call:
                    self._set_log_level(level)
                    self.log_level = level
                    self._broadcast(message, call, workers, 0, now_s)
                case Pause():
                    said = self._pause(message, message.call, workers, now_s)
                case Resume():
                    self.is_paused = False
                    self._done(message)
                case FlushCache(timeout_s=timeout_s):
                    self._begin_flush(message, timeout_s, now_s)
                case OpenSession() as call:
                    self._scheduler.open_session(call, now_s)
                    self._done(message)
                case CloseSession(session_id=session_id):
                    said = self._scheduler.close_session(session_id, now_s)
                    self._done(message, count=len(said))
                case ListSessions():
                    listing = msgspec.json.encode(self._scheduler.sessions(now_s)).decode()
                    self._done(message, result=listing)
                case _:
                    assert_never(message.call)
        except RequestError as error:
            self._refuse(message.origin, message.call_id, error)
        return said

    def note(self, message: Noted) -> None:
        """A worker has done what a notice said."""
        closed = self._broadcasts.note(message.origin, message.call_id, message.count)
        if closed is not None:
            self._close(closed)

    def audit(self, message: Audit) -> None:
        """Say which of these requests the scheduler does not hold.

        Whatever was ever said of those is in the outbox by now, if it has not left.
        """
        held = self._scheduler.held_serials(message.origin)
        missing = tuple(serial for serial in message.serials if serial not in held)
        self._told.append((message.origin, Audited(message.number, missing)))

    def forget(self, origin: Origin) -> None:
        """A life of a worker is over: no answer comes from it, and none goes to it."""
        if self._flush is not None and self._flush.caller == origin:
            self._flush = None
        for closed in self._broadcasts.forget(origin):
            self._close(closed)

    def take(self, now_s: float) -> list[tuple[Origin, ToWorker]]:
        """What is to be told now, to whom, in order."""
        if self._flush is not None:
            self._look_after_flush(self._flush, now_s)
        for closed in self._broadcasts.take_overdue(now_s):
            self._close(closed)
        told, self._told = self._told, []
        return told

    def next_deadline_s(self) -> float:
        """When the next wait is over, whatever comes; `inf` with none."""
        flush_s = math.inf if self._flush is None else self._flush.until_s
        return min(flush_s, self._broadcasts.next_deadline_s())

    def close(self) -> None:
        """Answer whoever still waits: the engine stops."""
        stopped = ShuttingDown("The engine stopped before this was done.")
        flush, self._flush = self._flush, None
        if flush is not None:
            self._refuse(flush.caller, flush.call_id, stopped)
        for closed in self._broadcasts.take_all():
            self._refuse(closed.caller, closed.call_id, stopped)

    # ---- the calls

    def _abort(
        self, message: Control, call: Abort, workers: Collection[Origin], now_s: float
    ) -> list[Addressed]:
        said = self._scheduler.abort(call.name, now_s, call.message)
        # Others may end with them: turns that were to go on from one of these.
        count = sum(_is_cancel(one) for one in said)
        self._broadcast(message, call, workers, count, now_s)
        return said

    def _pause(
        self, message: Control, call: Pause, workers: Collection[Origin], now_s: float
    ) -> list[Addressed]:
        self.is_paused = True
        match call.mode:
            case "abort":
                return self._abort(message, Abort(None), workers, now_s)
            case "retract":
                num_running = self._scheduler.load().num_running
                said = self._scheduler.retract_all(now_s)
                self._done(message, count=num_running)
                return said
            case "in_place":
                self._done(message)
                return []
            case _:
                assert_never(call.mode)

    def _broadcast(
        self,
        message: Control,
        call: Broadcast,
        workers: Collection[Origin],
        count: int,
        now_s: float,
    ) -> None:
        caller, call_id = message.origin, message.call_id
        if not workers:
            self._close(Closed(caller, call_id, call, count))
            return
        notice_id = self._broadcasts.open(caller, call_id, call, workers, count=count, now_s=now_s)
        self._told += [(worker, Notice(notice_id, call)) for worker in workers]

    def _close(self, closed: Closed) -> None:
        if closed.num_silent:
            words = f"{closed.num_silent} HTTP workers did not confirm it in time."
            self._refuse(closed.caller, closed.call_id, DeadlinePassed(words))
            return
        words = ""
        if isinstance(closed.call, Abort):
            what = "request was" if closed.count == 1 else "requests were"
            words = f"{closed.count or 'No'} {what} aborted."
        done = ControlDone(closed.call_id, is_ok=True, message=words, count=closed.count)
        self._told.append((closed.caller, done))

    def _begin_flush(self, message: Control, timeout_s: float | None, now_s: float) -> None:
        if timeout_s is None:
            self._told.append((message.origin, self._flushed(message.call_id)))
            return
        if self._flush is not None:
            words = "Another flush is waiting until no request is running."
            self._refuse(message.origin, message.call_id, RequestError(words))
            return
        flush = _Flush(message.origin, message.call_id, now_s + max(timeout_s, 0.0))
        self._flush = flush
        self._look_after_flush(flush, now_s)

    def _look_after_flush(self, flush: _Flush, now_s: float) -> None:
        load = self._scheduler.load()
        if load.num_running or load.num_waiting:
            if now_s < flush.until_s:
                return
            words = (
                f"Requests are running ({load.num_running}) or waiting ({load.num_waiting}); "
                "the cache can be flushed when none is."
            )
            self._refuse(flush.caller, flush.call_id, RequestError(words))
        else:
            self._told.append((flush.caller, self._flushed(flush.call_id)))
        self._flush = None

    def _flushed(self, call_id: str) -> ControlDone:
        num_tokens = self._scheduler.flush()
        return ControlDone(call_id, is_ok=True, message=f"{num_tokens} tokens were forgotten.")

    def _done(self, message: Control, *, count: int = 0, result: str = "") -> None:
        done = ControlDone(message.call_id, is_ok=True, count=count, result=result)
        self._told.append((message.origin, done))

    def _refuse(self, caller: Origin, call_id: str, error: RequestError) -> None:
        done = ControlDone(
            call_id, is_ok=False, message=error.message, code=error.code, status=error.http_status
        )
        self._told.append((caller, done))


def _is_cancel(said: Addressed) -> bool:
    event = said.event
    return isinstance(event, Ended) and event.outcome is Outcome.CLIENT_CANCELLED
