"""Between the queue and what runs: who is let in, and who has to go back."""

import sys
from collections.abc import Iterator
from collections.abc import Sequence as Many
from itertools import takewhile
from typing import Final

from roost.cache import KvCache, Match, pages_for
from roost.core.outcome import Outcome
from roost.core.plan import Slice
from roost.sched.admission import SchedLimits, is_under_way
from roost.sched.growth import FixedGrowth, Growth, LearnedGrowth
from roost.sched.policies import is_aged, new_policy
from roost.sched.roster import Roster
from roost.sched.sequence import Sequence

# So many of those that wait for another's beginning are looked at in a step; each costs a walk
# through the tree.
_MAX_PASSED = 64
# Who has waited too long is not sent back again for a higher priority.
_AGED_RANK: Final = sys.maxsize


class Door:
    """Gives pages to those that run, and lets others run, in the order of the policy."""

    def __init__(self, kv: KvCache, roster: Roster, limits: SchedLimits) -> None:
        self._kv = kv
        self._roster = roster
        self._line = new_policy(limits.policy, kv)
        self._learned = LearnedGrowth()

    @property
    def preempts(self) -> bool:
        """Whether a higher priority takes the place of a lower one."""
        return self._line.policy.preempts

    def grow(self, now_s: float) -> None:
        """Give every running sequence pages for all its tokens, the highest rank first, and of
        equal rank the oldest.

        When the pool is short the last goes back to the queue, until it suffices: the first is
        never retracted, and since it fits into the pool alone, it always gets on.
        """
        running = self._roster.running
        i = 0
        while i < len(running):
            seq = running[i]
            assert seq.kv is not None, "running without pages"
            lacking = pages_for(len(seq.tokens)) - len(seq.kv.pages)
            if lacking <= 0 or seq.kv.extend(lacking):
                i += 1
            else:
                self._learned.retracted()
                self._roster.retract(running[-1], now_s)

    def admit(self, limits: SchedLimits, now_s: float) -> list[tuple[int, int]]:
        """Let those run whose turn it is, while this step has tokens left for them, and their pages
        and everybody's expected growth fit → pages to copy.

        One whose beginning is being computed for another, or lies on disk, waits until it is there,
        and lets others pass.
        """
        running = self._roster.running
        copies: list[tuple[int, int]] = []
        waiting = self._roster.queue.ready()
        if not waiting:
            return copies
        has_room = len(running) < limits.max_running and self._left(limits.max_step_tokens, 0) > 0
        if not has_room and not self._is_outranked(waiting, now_s):
            return copies
        num_passed = 0
        admitted: set[int] = set()
        for seq in self._line.order(waiting, now_s):
            rank = self._rank(seq, now_s)
            if num_passed > _MAX_PASSED or self._left(limits.max_step_tokens, rank) <= 0:
                break
            match = self._match(seq)
            if is_under_way(seq, match.num_tokens, running):
                num_passed += 1
                continue
            room = self._make_room(seq, match, limits, admitted, now_s)
            if room is None:
                break
            if self._kv.fetch(room, seq.tokens, seq.num_reusable):
                num_passed += 1
                continue
            seq.kv = self._kv.open(room, len(seq.tokens))
            if seq.kv is None:  # how much room there is, is an estimate
                break
            if seq.kv.copy is not None:
                copies.append(seq.kv.copy)
            seq.rank = rank
            admitted.add(seq.number)
            self._let_run(seq, room.num_tokens, now_s)
        return copies

    def planned(self, sequences: Many[Sequence], slices: Many[Slice]) -> None:
        """A step computes these, each the slice of one."""
        policy = self._line.policy
        if policy.counts:
            for seq, cut in zip(sequences, slices, strict=True):
                policy.count(seq.envelope.tenant, cut.num_tokens)

    def ended(self, seq: Sequence, outcome: Outcome) -> None:
        """Learn from how far its answer went."""
        if outcome in (Outcome.STOP, Outcome.LENGTH):
            self._learned.ended(seq)

    def outranked(self, priority: int) -> Sequence | None:
        """Of those that wait and never ran, the one that gives its place in the queue to another of
        this priority: the lowest, and of equal ones the newest. None: there is none.
        """
        lower = [
            seq
            for seq in self._roster.queue
            if self.preempts and not seq.is_first and seq.envelope.priority < priority
        ]
        return min(lower, key=lambda seq: (seq.envelope.priority, -seq.number), default=None)

    def _rank(self, seq: Sequence, now_s: float) -> int:
        if not self.preempts:
            return 0
        return _AGED_RANK if is_aged(seq, now_s) else seq.envelope.priority

    def _is_outranked(self, waiting: Many[Sequence], now_s: float) -> bool:
        """Whether one of those that wait goes before the last of those that run."""
        if not self.preempts:
            return False
        lowest = self._roster.running[-1].rank
        if lowest == _AGED_RANK:
            return False
        # All of a deep queue are looked at, in every step.
        return any(seq.request.envelope.priority > lowest or is_aged(seq, now_s) for seq in waiting)

    def _left(self, max_step_tokens: int, rank: int) -> int:
        """Tokens of a step for somebody of this rank, who goes before the prompts of lower ones."""
        return max_step_tokens - sum(
            seq.num_pending
            for seq in self._roster.running
            if seq.rank >= rank or seq.num_pending == 1
        )

    def _match(self, seq: Sequence) -> Match:
        return self._kv.match(seq.namespace, seq.tokens, seq.num_reusable)

    def _make_room(
        self, seq: Sequence, match: Match, limits: SchedLimits, admitted: set[int], now_s: float
    ) -> Match | None:
        """If there is room for one more, what is known of it now; else None. Lower ones go back to
        the queue for it, but not those `admitted` in this step: their pages may be about to be
        copied.
        """
        running = self._roster.running
        growth: Growth = self._learned
        if limits.growth_tokens is not None:
            growth = FixedGrowth(limits.growth_tokens)
        lacking = growth.lacking(self._kv, running, seq, match)
        if len(running) < limits.max_running and lacking <= 0:
            return match
        victims = list(self._victims(seq, admitted))
        if not victims or sum(growth.pages(one) for one in victims) < lacking:
            return None
        for victim in victims:
            self._roster.retract(victim, now_s)
            # What it computed is in the tree now.
            match = self._match(seq)
            if growth.lacking(self._kv, running, seq, match) <= 0:
                return match
        return None

    def _victims(self, seq: Sequence, admitted: set[int]) -> Iterator[Sequence]:
        """Who may be sent back for it: the lowest first, and of equal ones the newest."""
        if not self.preempts:
            return iter(())
        return takewhile(
            lambda one: one.rank < seq.envelope.priority and one.number not in admitted,
            reversed(self._roster.running),
        )

    def _let_run(self, seq: Sequence, num_cached_tokens: int, now_s: float) -> None:
        self._roster.run(seq, now_s)
        self._line.began(seq)
        seq.num_computed = num_cached_tokens
        if seq.has_run:
            return
        seq.num_cached_tokens = num_cached_tokens
        seq.queue_s = max(now_s - seq.envelope.arrival_s, 0.0)
        if seq.turn is not None:
            seq.turn.start(num_cached_tokens)
