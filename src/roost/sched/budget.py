"""How many tokens a step may compute, so that nobody who is answering waits too long for it."""

import math
from collections.abc import Iterable
from typing import Final

from roost.core.plan import BatchPlan
from roost.sched.sequence import Sequence

# However slow the machine is, so much of the prompts is computed in a step, or none would end.
LEAST_TOKENS: Final = 16
# Of the prompts, in the first step, when nothing is known of the machine. Large enough to tell what
# a token costs, small enough for a slow one.
FIRST_TOKENS: Final = 64
# What was seen counts for half after seven steps with a prompt in them: what else the machine has
# to do changes.
_KEPT = 0.9
# To attend to so many tokens costs about as much as the rest of a token's work, in models of 0.1 to
# 1 thousand million weights. Where the steps leave open which of the two cost the time, it is
# shared so.
_ATTENDED_UNIT = 1024
_PRIOR = 64.0


class StepBudget:
    """Estimates what a step takes: seconds = token_s · tokens + attended_s · attended tokens, by
    least squares over past steps, the latest counting most.

    max_step_s: what a step should take at most; inf: nothing is estimated, and every step may have
    max_tokens.
    """

    def __init__(self, max_tokens: int, max_step_s: float) -> None:
        self._max_tokens = max_tokens
        self._max_step_s = max_step_s
        # Sums over steps, t their tokens, u what they attend to in units, y their seconds.
        self._tt = self._tu = self._uu = self._ty = self._uy = 0.0

    def tokens(self, running: Iterable[Sequence]) -> int:
        """Most tokens of the next step: a token for everybody who is answering, and of the prompts,
        in this order, what there is time for.
        """
        if self._max_step_s == math.inf:
            return self._max_tokens
        token_s, unit_s = self._costs()
        left_s = self._max_step_s
        num_tokens = 0
        prompts: list[Sequence] = []
        for seq in running:
            if seq.num_pending == 1:
                num_tokens += 1
                left_s -= token_s + unit_s * len(seq.tokens) / _ATTENDED_UNIT
            else:
                prompts.append(seq)
        least = num_tokens + LEAST_TOKENS
        if token_s == unit_s == 0:
            return min(num_tokens + FIRST_TOKENS, self._max_tokens)
        for seq in prompts:
            fit = _fitting(left_s, token_s, unit_s / _ATTENDED_UNIT, seq.num_computed)
            take = min(fit, seq.num_pending)
            num_tokens += take
            attended = _attended(seq.num_computed, seq.num_computed + take)
            left_s -= token_s * take + unit_s * attended / _ATTENDED_UNIT
            if take < seq.num_pending or num_tokens >= self._max_tokens:
                break
        return min(max(num_tokens, least), self._max_tokens)

    def observe(self, plan: BatchPlan, took_s: float) -> None:
        """A step took so long. One without a prompt says little of what prompts cost: then the
        weights have to be read for a few tokens.
        """
        if self._max_step_s == math.inf:
            return
        tokens = attended = prompt_tokens = 0
        for cut in plan.slices:
            tokens += cut.num_tokens
            attended += _attended(cut.start, cut.stop)
            if cut.num_tokens > 1:
                prompt_tokens += cut.num_tokens
        if prompt_tokens < LEAST_TOKENS:
            return
        units = attended / _ATTENDED_UNIT
        self._tt = self._tt * _KEPT + tokens * tokens
        self._tu = self._tu * _KEPT + tokens * units
        self._uu = self._uu * _KEPT + units * units
        self._ty = self._ty * _KEPT + tokens * took_s
        self._uy = self._uy * _KEPT + units * took_s

    def _costs(self) -> tuple[float, float]:
        """Seconds of a token, and of a unit attended to; both 0 before anything was observed."""
        if self._tt == 0:
            return 0.0, 0.0
        tt, tu, uu = self._tt + _PRIOR**2, self._tu - _PRIOR**2, self._uu + _PRIOR**2
        det = tt * uu - tu * tu
        token_s = (self._ty * uu - self._uy * tu) / det
        unit_s = (self._uy * tt - self._ty * tu) / det
        if unit_s < 0:
            return self._ty / self._tt, 0.0
        if token_s < 0:
            return 0.0, self._uy / self._uu
        return token_s, unit_s


def _attended(start: int, stop: int) -> int:
    """Tokens that positions [start, stop) attend to in all, themselves among them."""
    return (stop - start) * (start + stop + 1) // 2


def _fitting(left_s: float, token_s: float, attended_s: float, start: int) -> int:
    """How many tokens from position `start` on there is time for.

    n tokens take token_s · n + attended_s · (n · start + n² / 2).
    """
    if left_s <= 0:
        return 0
    each_s = token_s + attended_s * start
    if attended_s == 0:
        return int(left_s / each_s)
    return int((math.sqrt(each_s * each_s + 2 * attended_s * left_s) - each_s) / attended_s)
