"""The intake: prompts become checked token ids. Behind it nobody validates again."""

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
from roost.core.request import LogprobsWanted
from roost.frontend.ask import Ask, ChatPrompt, Prompt, TextPrompt, TokenPrompt, Wish
from roost.frontend.naming import AnswerName
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
    """One answer's request, checked: all but its envelope. text: its stream, not begun."""

    name: AnswerName
    prompt_ids: tuple[int, ...]
    prompt_text: str | None
    sampling: Sampling
    logprobs: LogprobsWanted
    text: TextStream


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

        Raises RequestError (PromptTooLong, TooManyTokens …) if any of them cannot be served.
        """
        prepared: list[Prepared] = []
        answers = iter(names)
        for wish in ask.wishes:
            ids, text = self.tokens_of(wish.prompt)
            sampling = self._sampling(wish, ids, is_clamped=ask.overflow == "clamp")
            self._check_logprobs(wish.logprobs, len(ids))
            for sample_index in range(wish.sampling.n):
                own = with_answer_index(sampling, sample_index)
                stream = self._stream(own)
                prepared.append(Prepared(next(answers), ids, text, own, wish.logprobs, stream))
        return prepared

    def tokens_of(self, prompt: Prompt) -> tuple[tuple[int, ...], str | None]:
        """The prompt's ids, and its text if it has one; a chat's is what the template gave."""
        tokenizer = self._tools.tokenizer
        text: str | None = None
        match prompt:
            case TextPrompt():
                text = prompt.text
                # A BOS alone is no prompt.
                ids = tuple(tokenizer.encode(text, add_special=prompt.add_special)) if text else ()
            case ChatPrompt():
                text = self.render(prompt)
                ids = tuple(tokenizer.encode(text))
            case TokenPrompt():
                ids = prompt.ids
                self._check_ids("The prompt", ids, "input_ids")
        if not ids:
            raise RequestError("The prompt is empty.", param=_FIELDS[type(prompt)])
        return ids, text

    def render(self, chat: ChatPrompt) -> str:
        """The text that the model's template makes of the messages."""
        if self._tools.template is None:
            raise RequestError(
                "The model has no chat template; the setting chat_template can give it one.",
                param="messages",
            )
        return self._tools.template.render(
            chat.messages,
            now_s=self._clock.unix_s(),
            tools=chat.tools,
            add_generation_prompt=chat.add_generation_prompt,
            continue_final_message=chat.continue_final_message,
            variables=chat.template_kwargs,
        )

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
        if is_clamped or params.max_new_tokens is None:
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

    def _check_logprobs(self, wanted: LogprobsWanted, num_prompt_tokens: int) -> None:
        if not 0 <= wanted.top <= MAX_TOP_LOGPROBS:
            raise RequestError(
                f"top_logprobs must be in [0, {MAX_TOP_LOGPROBS}], got {wanted.top}.",
                param="top_logprobs",
            )
        if not -1 <= wanted.prompt_from < num_prompt_tokens:
            raise RequestError(
                f"logprob_start_len must be in [-1, {num_prompt_tokens}), got "
                f"{wanted.prompt_from}.",
                param="logprob_start_len",
            )
        if len(wanted.token_ids) > _MAX_PICKED_IDS:
            raise RequestError(
                f"token_ids_logprob takes at most {_MAX_PICKED_IDS} ids.",
                param="token_ids_logprob",
            )
        self._check_ids("token_ids_logprob", wanted.token_ids, "token_ids_logprob")


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
