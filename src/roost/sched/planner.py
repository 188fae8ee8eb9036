"""Which tokens one step computes."""

from collections.abc import Sequence as Many

from roost.core.plan import Slice
from roost.sched.sequence import Sequence


def plan_slices(running: Many[Sequence], *, max_tokens: int) -> tuple[list[Sequence], list[Slice]]:
    """Give each sequence the tokens that it lacks, within one budget.

    First those that lack a single token: who is answering waits for no prompt. Then the others
    share what is left, the oldest first, so a long prompt is computed a chunk a step.
    """
    first: list[Sequence] = []
    then: list[Sequence] = []
    for seq in running:
        (first if seq.num_pending == 1 else then).append(seq)
    left = max_tokens
    chosen: list[Sequence] = []
    slices: list[Slice] = []
    for seq in (*first, *then):
        take = min(seq.num_pending, left)
        if take == 0:
            break
        chosen.append(seq)
        slices.append(cut(seq, take))
        left -= take
    return chosen, slices


def cut(seq: Sequence, num_tokens: int) -> Slice:
    """The next `num_tokens` pending tokens of a running sequence."""
    request = seq.request
    sampling = request.sampling
    start = seq.num_computed
    stop = start + num_tokens
    num_prompt_tokens = len(request.prompt_ids)
    assert seq.kv is not None, "a slice of a sequence that holds no pages"
    return Slice(
        request.envelope.rid,
        seq.tokens,
        num_prompt_tokens,
        start,
        stop,
        seq.kv.pages,
        stop == len(seq.tokens) and sampling.max_new_tokens > 0,
        sampling,
        request.logprobs,
        (0, 0) if request.logprobs.prompt_from < 0 else _prompt_positions(seq, start, stop),
    )


def _prompt_positions(seq: Sequence, start: int, stop: int) -> tuple[int, int]:
    """Positions of [start, stop) whose logits score a prompt token that has no logprob yet.

    The logits of position p score token p + 1. Token 0 is scored by nothing: its entry is made
    when the sequence is.
    """
    next_token = seq.request.logprobs.prompt_from + len(seq.prompt_logprobs)
    first = max(start, next_token - 1)
    last = min(stop, seq.num_prompt_tokens - 1)
    # After the first delta the collected ones are gone, and no more are wanted.
    return (first, last) if first < last and seq.num_generated == 0 else (0, 0)
