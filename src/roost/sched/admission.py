"""What may come in, and when it may run."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import msgspec

from roost.cache import KvCache
from roost.core.errors import PromptTooLong, QueueFull, RequestError, TooManyTokens
from roost.core.params import MAX_TOP_LOGPROBS
from roost.core.plan import PAGE_TOKENS
from roost.core.request import GenerateRequest
from roost.sched.policies import PolicyName
from roost.sched.sequence import Sequence


@dataclass(frozen=True, slots=True)
class SchedLimits:
    """Facts of the model and settings of the server.

    max_step_tokens: tokens computed in one step, at most. It exceeds max_running, so that a prompt
    gets on even when every other sequence decodes.

    growth_tokens: by how much an answer is expected to grow before others end and give pages back.
    Lower, and sequences are retracted soon after they were admitted; higher, and memory lies idle.
    None: it is learned from the answers. policy: in which order those that wait are considered.
    max_step_s: what a step should take at most; prompts are cut accordingly.

    bos_id: what the tokenizer puts before a prompt, if anything. eos_ids: what ends an answer.
    session_timeout_s: a session that is idle for so long is closed; inf: never. session_busy: what
    a turn does that goes on from one which has not ended.
    speculates: steps that have room for it try tokens that may come next.
    """

    vocab_size: int
    max_context_tokens: int
    max_running: int
    max_queued: int
    max_step_tokens: int = 512
    growth_tokens: int | None = None
    policy: PolicyName = "lpm"
    max_step_s: float = math.inf
    queue_timeout_s: float = math.inf
    bos_id: int | None = None
    eos_ids: frozenset[int] = frozenset()
    max_sessions: int = 1024
    session_timeout_s: float = math.inf
    session_busy: Literal["wait", "refuse"] = "wait"
    speculates: bool = False

    def __post_init__(self) -> None:
        assert self.max_running >= 1, "nothing may run"
        assert self.max_step_tokens > self.max_running, (
            "a full batch would leave no room to prefill"
        )


def limit_tokens(limits: SchedLimits, kv: KvCache) -> int:
    """Most tokens of a prompt and its answer together: of the context, and of the whole pool."""
    return min(limits.max_context_tokens, kv.pool.num_pages * PAGE_TOKENS)


def check_fields(request: GenerateRequest, limits: SchedLimits) -> None:
    """Raise RequestError for what can never run, whatever its prompt goes on from.

    Whoever sent it has checked it against the same facts; here it guards the engine: a value that a
    program cannot take would break the step of everybody.
    """
    if not request.prompt_ids:
        raise RequestError("The prompt is empty.", param="input_ids")
    if not 0 <= request.logprobs.top <= MAX_TOP_LOGPROBS:
        raise RequestError(
            f"top_logprobs_num must be in [0, {MAX_TOP_LOGPROBS}], got {request.logprobs.top}.",
            param="top_logprobs_num",
        )
    _check_ids("input_ids", request.prompt_ids, limits.vocab_size)
    _check_ids("token_ids_logprob", request.logprobs.token_ids, limits.vocab_size)
    _check_ids("stop_token_ids", request.sampling.stop_ids, limits.vocab_size)
    _check_ids(
        "logit_bias",
        tuple(token_id for token_id, _ in request.sampling.logit_bias),
        limits.vocab_size,
    )


def check_length(request: GenerateRequest, limits: SchedLimits, kv: KvCache) -> None:
    """Raise RequestError for a prompt, or an answer behind it, that never fits."""
    num_prompt_tokens = len(request.prompt_ids)
    if num_prompt_tokens > limits.max_context_tokens:
        raise PromptTooLong(
            num_prompt_tokens=num_prompt_tokens, max_context_tokens=limits.max_context_tokens
        )
    limit = limit_tokens(limits, kv)
    max_new_tokens = request.sampling.max_new_tokens
    if num_prompt_tokens + max_new_tokens > limit:
        raise TooManyTokens(
            num_prompt_tokens=num_prompt_tokens, max_new_tokens=max_new_tokens, limit_tokens=limit
        )


def whole_turn(
    request: GenerateRequest, prompt_ids: tuple[int, ...], limits: SchedLimits, kv: KvCache
) -> GenerateRequest:
    """The request of a session's turn once its whole prompt is known, cut to what fits if it asked
    for that. Raises RequestError for what does not fit.
    """
    assert request.turn is not None, "no turn of a session"
    sampling = request.sampling
    if request.turn.is_clamped:
        limit = limit_tokens(limits, kv)
        room = limit - len(prompt_ids)
        if room < min(sampling.max_new_tokens, 1):
            raise PromptTooLong(num_prompt_tokens=len(prompt_ids), max_context_tokens=limit)
        max_new_tokens = min(sampling.max_new_tokens, room)
        sampling = msgspec.structs.replace(
            sampling,
            max_new_tokens=max_new_tokens,
            min_new_tokens=min(sampling.min_new_tokens, max_new_tokens),
        )
    whole = msgspec.structs.replace(request, prompt_ids=prompt_ids, sampling=sampling)
    check_length(whole, limits, kv)
    prompt_from = request.logprobs.prompt_from
    if not -1 <= prompt_from < len(prompt_ids):
        raise RequestError(
            f"logprob_start_len must be in [-1, {len(prompt_ids)}), got {prompt_from}.",
            param="logprob_start_len",
        )
    return whole


def check_queue(request: GenerateRequest, *, is_full: bool) -> None:
    """Raise QueueFull, but never for a health check."""
    if is_full and not request.envelope.is_health_check:
        raise QueueFull("The request queue is full.")


def _check_ids(param: str, ids: tuple[int, ...], vocab_size: int) -> None:
    if ids and not (min(ids) >= 0 and max(ids) < vocab_size):
        bad = next(token_id for token_id in ids if not 0 <= token_id < vocab_size)
        raise RequestError(f"{param} must hold ids in [0, {vocab_size}), got {bad}.", param=param)


def is_under_way(seq: Sequence, num_known: int, running: Iterable[Sequence]) -> bool:
    """Whether somebody computes a page or more of its beginning, behind what is known of it: then
    to wait is quicker than to compute it twice.
    """
    for other in running:
        if other.num_pending == 1 or other.namespace != seq.namespace:
            continue
        most = min(seq.num_reusable, len(other.tokens))
        common = num_known
        # Whole pages, as only those can be found before the other has ended.
        while common + PAGE_TOKENS <= most and (
            seq.tokens[common : common + PAGE_TOKENS] == other.tokens[common : common + PAGE_TOKENS]
        ):
            common += PAGE_TOKENS
        if common > num_known and other.num_computed < common and _agree(seq, other, num_known):
            return True
    return False


def _agree(seq: Sequence, other: Sequence, num_tokens: int) -> bool:
    return seq.tokens[:num_tokens] == other.tokens[:num_tokens]
