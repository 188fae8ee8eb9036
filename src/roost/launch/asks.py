"""What a Python caller may hand in, as asks."""

from collections.abc import Mapping, Sequence

from roost.core.errors import RequestError
from roost.core.params import SamplingParams
from roost.core.request import NO_LOGPROBS, LogprobsWanted
from roost.frontend import Ask, ChatPrompt, Prompt, TextPrompt, TokenPrompt, Wish

Messages = Sequence[Mapping[str, object]]


def prompt_of(
    prompt: str | None, prompt_ids: Sequence[int] | None, messages: Messages | None
) -> Prompt:
    """The one of three that is given. Raises RequestError for none or several."""
    if (prompt is not None) + (prompt_ids is not None) + (messages is not None) != 1:
        raise RequestError("Give exactly one of prompt, prompt_ids and messages.", param="prompt")
    if prompt is not None:
        return TextPrompt(prompt)
    if prompt_ids is not None:
        return TokenPrompt(tuple(int(token_id) for token_id in prompt_ids))
    return ChatPrompt(tuple(messages or ()))


def ask_of(
    prompts: Sequence[Prompt],
    sampling: SamplingParams | None,
    logprobs: LogprobsWanted = NO_LOGPROBS,
    timeout_s: float | None = None,
) -> Ask:
    """The same wish for every prompt."""
    params = SamplingParams() if sampling is None else sampling
    return Ask(tuple(Wish(p, params, logprobs) for p in prompts), timeout_s=timeout_s)


def single_ask(
    prompt: Prompt,
    sampling: SamplingParams | None,
    logprobs: LogprobsWanted = NO_LOGPROBS,
    timeout_s: float | None = None,
) -> Ask:
    """An ask of one answer. A chat's may fill the context, and is cut to what fits there."""
    is_chat = isinstance(prompt, ChatPrompt)
    params = sampling or SamplingParams(max_new_tokens=None if is_chat else 128)
    if params.n != 1:
        raise RequestError("For n > 1, give a list of prompts.", param="n")
    wishes = (Wish(prompt, params, logprobs),)
    return Ask(wishes, timeout_s=timeout_s, overflow="clamp" if is_chat else "refuse")
