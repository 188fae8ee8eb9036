"""Every live request, and where it is."""

from typing import NamedTuple

from roost.cache import KvCache, Pin, pages_for
from roost.core.errors import DuplicateRequest
from roost.core.request import Envelope, Origin, RequestId
from roost.sched.deadlines import Deadlines
from roost.sched.queue import WaitingQueue
from roost.sched.sequence import Sequence


class _Serial(NamedTuple):
    origin: Origin
    serial: int


class Roster:
    """Who lives: each request once, by its rid and by its serial, in the queue or running.

    `running` is in order of rank and, of equal rank, of admission; the queue is in order of
    arrival, but what was retracted goes to its front.
    """

    def __init__(self, max_queued: int) -> None:
        self.queue = WaitingQueue(max_queued)
        self.running: list[Sequence] = []
        self.deadlines = Deadlines()
        self._live: dict[RequestId, Sequence] = {}
        self._by_serial: dict[_Serial, Sequence] = {}

    def __len__(self) -> int:
        return len(self._live)

    # ---- verbs

    def check_new(self, envelope: Envelope) -> None:
        """Raise DuplicateRequest when the rid, or the serial, is that of a live request."""
        key = _Serial(envelope.origin, envelope.serial)
        if envelope.rid in self._live or key in self._by_serial:
            raise DuplicateRequest(envelope.rid)

    def enter(self, seq: Sequence) -> None:
        """It waits: at the front, at the end, or held for another turn."""
        envelope = seq.envelope
        self._live[envelope.rid] = seq
        self._by_serial[_Serial(envelope.origin, envelope.serial)] = seq
        if seq.turn is not None and seq.turn.is_held:
            self.queue.hold(seq)
        elif envelope.is_health_check:
            self.queue.push_front(seq)
        else:
            self.queue.push(seq)
        self.deadlines.watch(seq)

    def run(self, seq: Sequence, now_s: float) -> None:
        """One that waited has its pages, and runs."""
        self.queue.remove(seq)
        seq.waited_s += max(now_s - seq.waits_from_s, 0.0)
        at = len(self.running)
        while at and self.running[at - 1].rank < seq.rank:
            at -= 1
        self.running.insert(at, seq)

    def retract(self, seq: Sequence, now_s: float) -> None:
        """Back to the front of the queue without pages. What of them is still cached when it goes
        on need not be computed again.
        """
        assert seq.kv is not None, "retracted while waiting"
        self._free(seq)
        seq.num_retractions += 1
        seq.waits_from_s = now_s
        self.running.remove(seq)
        self.queue.push_front(seq)

    def leave(self, seq: Sequence) -> None:
        """It has ended: take it out of everything. Its pages are free for the next plan, which
        runs after the one in flight.
        """
        envelope = seq.envelope
        assert not seq.is_ended, f"{envelope.rid} ends twice"
        seq.is_ended = True
        del self._live[envelope.rid]
        del self._by_serial[_Serial(envelope.origin, envelope.serial)]
        if seq.kv is None:
            self.queue.remove(seq)
            return
        self.running.remove(seq)
        self._free(seq)

    def _free(self, seq: Sequence) -> None:
        assert seq.kv is not None, "it has no pages"
        seq.kv.free(seq.tokens, seq.num_computed)
        seq.kv = None
        seq.num_computed = 0

    # ---- questions

    def find(self, rid: RequestId) -> Sequence:
        """The live request of this rid, which there is."""
        return self._live[rid]

    def numbered(self, origin: Origin, serial: int) -> Sequence | None:
        return self._by_serial.get(_Serial(origin, serial))

    def named(self, name: str) -> list[Sequence]:
        """The request of exactly this rid, and all of the call of exactly this name; two workers
        may have given one name to either.
        """
        # No group is the empty name, and that names nothing.
        return [
            seq
            for seq in self._live.values()
            if name and name in (seq.envelope.rid, seq.envelope.group)
        ]

    def all_of(self, origin: Origin | None) -> list[Sequence]:
        """Whatever `origin` asked for, in order of arrival; None: everything."""
        return [seq for seq in self._live.values() if origin in (None, seq.envelope.origin)]

    def check(self, kv: KvCache, pins: list[Pin]) -> None:
        """Assert that the books balance. O(live requests + pages)."""
        kv.check([seq.kv for seq in self.running if seq.kv is not None], pins)
        for seq in self.running:
            assert seq.kv is not None, f"{seq.envelope.rid} runs without pages"
            assert seq.num_computed < len(seq.tokens), f"{seq.envelope.rid} has nothing to do"
            assert pages_for(seq.num_computed) <= len(seq.kv.pages), "computed without a page"
        for seq in self.queue:
            assert seq.kv is None, f"{seq.envelope.rid} waits with pages"
            assert seq.num_computed == 0, f"{seq.envelope.rid} waits with tokens computed"
        where = [*self.running, *self.queue]
        assert len(where) == len(self._live), "a request is in two places, or in none"
        assert len(where) == len(self._by_serial), "a request has no serial, or two"
        for seq in where:
            assert self._live.get(seq.envelope.rid) is seq, f"{seq.envelope.rid} is not on the list"
            assert not seq.is_ended, f"{seq.envelope.rid} goes on after its end"
