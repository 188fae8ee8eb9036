"""What `/v1/completions` takes, turned into an ask."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from roost.api.body import names_of, parse, refuse_named
from roost.api.native_body import token_prompts
from roost.api.openai_sampling import REFUSED, CallFields, SamplingFields, sampling_of
from roost.api.service import request_id
from roost.core.errors import RequestError
from roost.core.params import MAX_TOP_LOGPROBS
from roost.core.request import NO_LOGPROBS, LogprobsWanted
from roost.frontend import Ask, Prompt, TextPrompt, Wish

_REFUSED: Final[Mapping[str, str]] = {**REFUSED, "suffix": "is not supported"}
# OpenAI's default for this route.
_DEFAULT_MAX_TOKENS: Final = 16


class CompletionFields(msgspec.Struct, frozen=True):
    """The fields of a completion that are neither sampling's nor every call's."""

    prompt: str | list[str | int | list[int]]
    max_tokens: Annotated[int, Meta(ge=0)] | None = None
    logprobs: Annotated[int, Meta(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    echo: bool | None = None
    best_of: int | None = None


@dataclass(frozen=True, slots=True)
class CompletionCall:
    """A checked body. num_top: alternatives beside each token; None: no logprobs at all."""

    ask: Ask
    rid: str
    model: str | None
    is_stream: bool
    includes_usage: bool
    has_echo: bool
    num_top: int | None
    skips_special: bool


def parse_completion(body: bytes) -> CompletionCall:
    """Raises RequestError naming the field."""
    refuse_named(names_of(body), _REFUSED)
    common = parse(body, CallFields)
    common.check()
    fields = parse(body, CompletionFields)
    max_new = _DEFAULT_MAX_TOKENS if fields.max_tokens is None else fields.max_tokens
    sampling = sampling_of(parse(body, SamplingFields), max_new)
    if fields.best_of not in (None, sampling.n):
        raise RequestError("best_of is not supported, unless it is n.", param="best_of")
    has_echo = bool(fields.echo)
    wanted = NO_LOGPROBS
    if fields.logprobs is not None:
        wanted = LogprobsWanted(chosen=True, prompt_from=0 if has_echo else -1, top=fields.logprobs)
    rid = request_id(common.rid, "cmpl-")
    namespace = common.namespace
    wishes = tuple(
        Wish(prompt, sampling, wanted, namespace=namespace) for prompt in _prompts(fields.prompt)
    )
    return CompletionCall(
        ask=Ask(
            wishes,
            rid=rid,
            priority=common.priority or 0,
            timeout_s=common.timeout,
            session=common.session,
        ),
        rid=rid,
        model=common.model,
        is_stream=bool(common.stream),
        includes_usage=common.includes_usage,
        has_echo=has_echo,
        num_top=fields.logprobs,
        skips_special=sampling.skip_special_tokens,
    )


def _prompts(given: str | list[str | int | list[int]]) -> list[Prompt]:
    if isinstance(given, str):
        return [TextPrompt(given)]
    texts = [p for p in given if isinstance(p, str)]
    if texts and len(texts) != len(given):
        raise RequestError("prompt must be texts or ids, not both.", param="prompt")
    if texts:
        return [TextPrompt(text) for text in texts]
    return token_prompts([p for p in given if not isinstance(p, str)], "prompt")[0]
