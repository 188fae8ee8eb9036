"""What a step's result means for a sequence: its new tokens, and whether they end it."""

from roost.core.events import Delta, Ended, TokenLogprob
from roost.core.outcome import Outcome
from roost.core.plan import SliceResult
from roost.sched.sequence import Sequence, TokenBytes


def record(
    seq: Sequence, result: SliceResult, num_computed: int, now_s: float, token_bytes: TokenBytes
) -> tuple[Delta | None, Ended | None]:
    """Write one result into its sequence → what to say about it, in this order.

    num_computed: tokens that are computed now, drafts aside. Of several new tokens those behind an
    ending are dropped: the answer is that of one token a step.
    """
    if result.fault:
        message = f"The model's output is not usable: {result.fault}"
        fault = Ended(Outcome.ENGINE_FAULT, seq.usage(now_s), message=message, code="engine_fault")
        return None, fault
    seq.num_computed = num_computed
    if result.prompt_logprobs:
        seq.prompt_logprobs.extend(result.prompt_logprobs)
    if not result.token_ids:
        if num_computed < len(seq.tokens):
            return None, None
        # All computed, and no token wanted: a request of zero new tokens.
        return _without_tokens(seq), Ended(Outcome.LENGTH, seq.usage(now_s))
    first = seq.num_generated
    ended = None
    for token_id in result.token_ids:
        seq.tokens.append(token_id)
        ended = _ending(seq, token_id, now_s, token_bytes)
        if ended is not None:
            break
    # Each new token but the last was a draft, and is computed.
    seq.num_computed = len(seq.tokens) - 1
    return _delta(seq, first, result), ended


def _without_tokens(seq: Sequence) -> Delta | None:
    if not seq.prompt_logprobs:
        return None
    return Delta(0, (), prompt_logprobs=_take_prompt_logprobs(seq))


def _delta(seq: Sequence, first: int, result: SliceResult) -> Delta:
    num_new = seq.num_generated - first
    return Delta(
        first,
        result.token_ids[:num_new],
        result.logprobs[:num_new],
        _take_prompt_logprobs(seq) if seq.prompt_logprobs else (),
    )


def _take_prompt_logprobs(seq: Sequence) -> tuple[TokenLogprob, ...]:
    taken = tuple(seq.prompt_logprobs)
    seq.prompt_logprobs.clear()
    return taken


def _ending(seq: Sequence, token_id: int, now_s: float, token_bytes: TokenBytes) -> Ended | None:
    """Stop token, stop string, length: in this order, since a token may be all three."""
    sampling = seq.request.sampling
    num_generated = seq.num_generated
    may_stop = num_generated > sampling.min_new_tokens
    if may_stop and token_id in sampling.stop_ids:
        return Ended(
            Outcome.STOP,
            seq.usage(now_s),
            matched=token_id,
            text_bytes=_bytes_before_last(seq, token_bytes),
        )
    if seq.matcher is not None:
        data = token_bytes(token_id, sampling.skip_special_tokens)
        if not may_stop:
            seq.matcher.skip(data)
        elif (match := seq.matcher.feed(data)) is not None:
            return Ended(
                Outcome.STOP, seq.usage(now_s), matched=match.matched, text_bytes=match.start
            )
    if num_generated >= sampling.max_new_tokens:
        return Ended(Outcome.LENGTH, seq.usage(now_s))
    return None


def _bytes_before_last(seq: Sequence, token_bytes: TokenBytes) -> int:
    """Bytes of the answer before its last token; −1 when that token adds none anyway."""
    skip = seq.request.sampling.skip_special_tokens
    if not token_bytes(seq.tokens[-1], skip):
        return -1
    before = seq.tokens[seq.num_prompt_tokens : -1]
    return sum(len(token_bytes(token_id, skip)) for token_id in before)
