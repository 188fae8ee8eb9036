"""The intake: prompts become checked token ids. Behind it nobody validates again."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from roost.core.clock import Clock
from roost.core.errors import PromptTooLong, RequestError, TooManyTokens
from roost.core.params import (
    MAX_TOP_LOGPROBS,
    Limits,
    Sampling,
    SamplingParams,
    check_sampling,
    with_answer_index,
)
from roost.core.request import LogprobsWanted, RequestId, SessionTurn
from roost.frontend.ask import Ask, ChatPrompt, Prompt, TextPrompt, TokenPrompt, Wish
from roost.frontend.naming import AnswerName
from roost.frontend.rendering import rendered, rendered_behind
from roost.text import ChatTemplate, TextStream, Tokenizer
from roost.wire.messages import ModelFacts

# Beside each position so many tokens of the client's choice; the answer carries each of them.
_MAX_PICKED_IDS = 1024
# The native names of the fields that prompts come in.
_FIELDS: dict[type[Prompt], str] = {
    TextPrompt: "text",
    TokenPrompt: "input_ids",
    ChatPrompt: "messages",
}


@dataclass(frozen=True, slots=True)
class TextTools:
    """A model's text side. template: None where the model has no chat format."""

    tokenizer: Tokenizer
    template: ChatTemplate | None


@dataclass(frozen=True, slots=True)
class Prepared:
    """One answer's request, checked: all but its envelope. text: its stream, not begun.

    prompt_ids, prompt_text: of a session's turn, what is new.
    """

    name: AnswerName
    prompt_ids: tuple[int, ...]
    prompt_text: str | None
    sampling: Sampling
    logprobs: LogprobsWanted
    text: TextStream
    turn: SessionTurn | None
    namespace: str


class Intake:
    """Renders, tokenises and checks. It is not changed by use, and threads may share it.

    draw_seed: gives the seed of an answer for which the client gave none.
    """

    def __init__(
        self, tools: TextTools, facts: ModelFacts, clock: Clock, draw_seed: Callable[[], int]
    ) -> None:
        self._tools = tools
        self._facts = facts
        self._clock = clock
        self._draw_seed = draw_seed

    def prepare(self, ask: Ask, names: tuple[AnswerName, ...]) -> list[Prepared]:
        """Every answer's request, in order. May take long; to be called off the event loop.

        Raises RequestError (PromptTooLong, TooManyTokens …) if any of them cannot be served. Of a
        turn of a session, that is what its new tokens show; the engine knows the others.
        """
        prepared: list[Prepared] = []
        answers = iter(names)
        is_turn = ask.session is not None
        is_behind = ask.session is not None and ask.session.parent is not None
        for wish in ask.wishes:
            ids, text = self.tokens_of(wish.prompt, is_behind=is_behind)
            is_clamped = ask.overflow == "clamp" or wish.sampling.max_new_tokens is None
            sampling = self._sampling(wish, ids, is_clamped=is_clamped)
            self._check_logprobs(wish.logprobs, None if is_turn else len(ids))
            turn = _turn(ask, is_clamped=is_clamped)
            for sample_index in range(wish.sampling.n):
                own = with_answer_index(sampling, sample_index)
                name, stream = next(answers), self._stream(own)
                prepared.append(
                    Prepared(name, ids, text, own, wish.logprobs, stream, turn, wish.namespace)
                )
        return prepared

    def tokens_of(
        self, prompt: Prompt, *, is_behind: bool = False
    ) -> tuple[tuple[int, ...], str | None]:
        """The prompt's ids, and its text if it has one; a chat's is what the template gave.

        is_behind: it goes on from an answer of the model. (A text's BOS is the engine's to drop.)
        """
        tokenizer = self._tools.tokenizer
        template, now_s = self._tools.template, self._clock.unix_s()
        text: str | None = None
        match prompt:
            case TextPrompt():
                text = prompt.text
                # A BOS alone is no prompt.
                ids = tuple(tokenizer.encode(text, add_special=prompt.add_special)) if text else ()
            case ChatPrompt() if is_behind:
                text = rendered_behind(template, prompt, now_s)
                ids = tuple(tokenizer.encode(text, add_special=False))
            case ChatPrompt():
                text = rendered(template, prompt, now_s)
                ids = tuple(tokenizer.encode(text))
            case TokenPrompt():
                ids = prompt.ids
                self._check_ids("The prompt", ids, "input_ids")
        if not ids:
            raise RequestError("The prompt is empty.", param=_FIELDS[type(prompt)])
        return ids, text

    def _sampling(self, wish: Wish, ids: tuple[int, ...], *, is_clamped: bool) -> Sampling:
        num_prompt_tokens = len(ids)
        context = self._facts.max_context_tokens
        if num_prompt_tokens > context:
            raise PromptTooLong(num_prompt_tokens=num_prompt_tokens, max_context_tokens=context)
        # A pool smaller than the context is the tighter limit.
        limit = min(context, self._facts.num_kv_tokens)
        params = wish.sampling
        if num_prompt_tokens > limit:
            raise TooManyTokens(
                num_prompt_tokens=num_prompt_tokens,
                max_new_tokens=params.max_new_tokens or 0,
                limit_tokens=limit,
            )
        room = limit - num_prompt_tokens
        if is_clamped:
            if room == 0 and params.max_new_tokens != 0:
                raise PromptTooLong(num_prompt_tokens=num_prompt_tokens, max_context_tokens=limit)
            params = _clamped(params, room)
        limits = Limits(self._facts.vocab_size, limit, self._facts.eos_ids)
        sampling = check_sampling(
            params, limits, num_prompt_tokens=num_prompt_tokens, fallback_seed=self._draw_seed()
        )
        if sampling.max_new_tokens > room:
            raise TooManyTokens(
                num_prompt_tokens=num_prompt_tokens,
                max_new_tokens=sampling.max_new_tokens,
                limit_tokens=limit,
            )
        return sampling

    def _stream(self, sampling: Sampling) -> TextStream:
        return TextStream(
            self._tools.tokenizer,
            stops=sampling.stops,
            regexes=sampling.stop_regexes,
            skip_special=sampling.skip_special_tokens,
        )

    def _check_ids(self, what: str, ids: tuple[int, ...], param: str) -> None:
        vocab_size = self._facts.vocab_size
        if ids and not (min(ids) >= 0 and max(ids) < vocab_size):
            at, bad = next((i, t) for i, t in enumerate(ids) if not 0 <= t < vocab_size)
            raise RequestError(
                f"{what} must hold ids in [0, {vocab_size}), got {bad} at position {at}.",
                param=param,
            )

    def _check_logprobs(self, wanted: LogprobsWanted, num_prompt_tokens: int | None) -> None:
        """num_prompt_tokens: None where only the engine knows it."""
        if not 0 <= wanted.top <= MAX_TOP_LOGPROBS:
            raise RequestError(
                f"top_logprobs must be in [0, {MAX_TOP_LOGPROBS}], got {wanted.top}.",
                param="top_logprobs",
            )
        end = math.inf if num_prompt_tokens is None else num_prompt_tokens
        if not -1 <= wanted.prompt_from < end:
            allowed = "at least -1" if num_prompt_tokens is None else f"in [-1, {end})"
            raise RequestError(
                f"logprob_start_len must be {allowed}, got {wanted.prompt_from}.",
                param="logprob_start_len",
            )
        if len(wanted.token_ids) > _MAX_PICKED_IDS:
            raise RequestError(
                f"token_ids_logprob takes at most {_MAX_PICKED_IDS} ids.",
                param="token_ids_logprob",
            )
        self._check_ids("token_ids_logprob", wanted.token_ids, "token_ids_logprob")


def _turn(ask: Ask, *, is_clamped: bool) -> SessionTurn | None:
    session = ask.session
    if session is None:
        return None
    return SessionTurn(
        session_id=session.session_id,
        parent=None if session.parent is None else RequestId(session.parent),
        offset=session.offset,
        drops_output=session.drops_output,
        replaces=session.replaces,
        is_clamped=is_clamped,
    )


def _clamped(params: SamplingParams, room: int) -> SamplingParams:
    """`params` cut to what fits. A bad value stays, for the check to name."""
    asked = params.max_new_tokens
    max_new = room if asked is None else min(asked, room)
    min_new = min(params.min_new_tokens, max_new) if asked is None or asked > room else None
    return msgspec.structs.replace(
        params,
        max_new_tokens=max_new,
        min_new_tokens=params.min_new_tokens if min_new is None else min_new,
    )
