"""Between the queue and what runs: who is let in, and who has to go back."""

from roost.cache import KvCache, pages_for
from roost.sched.admission import SchedLimits, expected_pages, is_under_way, spare_pages
from roost.sched.roster import Roster
from roost.sched.sequence import Sequence

# So many of those that wait for another's beginning are looked at in a step; each costs a walk
# through the tree.
_MAX_PASSED = 64


class Door:
    """Gives pages to those that run, and lets others run."""

    def __init__(self, kv: KvCache, roster: Roster) -> None:
        self._kv = kv
        self._roster = roster

    def grow(self) -> None:
        """Give every running sequence pages for all its tokens, the oldest first.

        When the pool is short the newest goes back to the queue, until it suffices: the oldest is
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
                self._roster.retract(running[-1])

    def admit(self, limits: SchedLimits, now_s: float) -> list[tuple[int, int]]:
        """Let those at the head of the queue run while this step has tokens left for them, and
        their pages and everybody's expected growth fit → pages to copy.

        One whose beginning is being computed for another, or lies on disk, waits until it is there,
        and lets others pass.
        """
        queue, running = self._roster.queue, self._roster.running
        copies: list[tuple[int, int]] = []
        left = limits.max_step_tokens - sum(seq.num_pending for seq in running)
        growth_tokens = limits.growth_tokens
        spare: int | None = None
        num_passed = 0
        if left <= 0 or len(running) >= limits.max_running:
            return copies
        for seq in queue.ready():
            if left <= 0 or len(running) >= limits.max_running or num_passed > _MAX_PASSED:
                break
            match = self._kv.match(seq.namespace, seq.tokens, seq.num_reusable)
            if is_under_way(seq, match.num_tokens, running):
                num_passed += 1
                continue
            if spare is None:
                spare = spare_pages(self._kv, running, growth_tokens)
            spare -= expected_pages(seq, growth_tokens) - self._kv.num_held(match)
            if spare < 0:
                break
            if self._kv.fetch(match, seq.tokens, seq.num_reusable):
                num_passed += 1
                continue
            seq.kv = self._kv.open(match, len(seq.tokens))
            assert seq.kv is not None, "spare pages that cannot be had"
            if seq.kv.copy is not None:
                copies.append(seq.kv.copy)
            self._let_run(seq, match.num_tokens, now_s)
            left -= seq.num_pending
        return copies

    def _let_run(self, seq: Sequence, num_cached_tokens: int, now_s: float) -> None:
        self._roster.run(seq)
        seq.num_computed = num_cached_tokens
        if seq.has_run:
            return
        seq.num_cached_tokens = num_cached_tokens
        seq.queue_s = max(now_s - seq.envelope.arrival_s, 0.0)
        if seq.turn is not None:
            seq.turn.start(num_cached_tokens)
