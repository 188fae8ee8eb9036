"""What a step's result means for a sequence: its new token, and whether that ends it."""

from roost.core.events import Delta, Ended, TokenLogprob
from roost.core.outcome import Outcome
from roost.core.plan import SliceResult
from roost.sched.sequence import Sequence, TokenBytes


def record(
    seq: Sequence, result: SliceResult, num_computed: int, now_s: float, token_bytes: TokenBytes
) -> tuple[Delta | None, Ended | None]:
    """Write one result into its sequence → what to say about it, in this order."""
    if result.fault:
        message = f"The model's output is not usable: {result.fault}"
        fault = Ended(Outcome.ENGINE_FAULT, seq.usage(now_s), message=message, code="engine_fault")
        return None, fault
    seq.num_computed = num_computed
    if result.prompt_logprobs:
        seq.prompt_logprobs.extend(result.prompt_logprobs)
    if result.token_id is None:
        if num_computed < len(seq.tokens):
            return None, None
        # All computed, and no token wanted: a request of zero new tokens.
        return _without_tokens(seq), Ended(Outcome.LENGTH, seq.usage(now_s))
    seq.tokens.append(result.token_id)
    return _delta(seq, result.token_id, result.logprob), _ending(
        seq, result.token_id, now_s, token_bytes
    )


def _without_tokens(seq: Sequence) -> Delta | None:
    if not seq.prompt_logprobs:
        return None
    return Delta(0, (), prompt_logprobs=_take_prompt_logprobs(seq))


def _delta(seq: Sequence, token_id: int, logprob: TokenLogprob | None) -> Delta:
    return Delta(
        seq.num_generated - 1,
        (token_id,),
        () if logprob is None else (logprob,),
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
