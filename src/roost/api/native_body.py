"""What `/generate` takes, turned into an ask. The names and defaults are SGLang's."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

import msgspec

from roost.api.body import NOT_YET, Names, names_of, parse, refuse_named, refuse_unknown, seconds
from roost.api.namespaces import namespace_of
from roost.api.service import request_id
from roost.api.session_params import session_wish
from roost.core.errors import RequestError
from roost.core.params import MAX_TOP_LOGPROBS, SamplingParams
from roost.core.request import NO_LOGPROBS, LogprobsWanted
from roost.frontend import Ask, Prompt, TextPrompt, TokenPrompt, Wish

V = TypeVar("V")
_REFUSED: Final = dict.fromkeys(
    (
        *("input_embeds", "image_data", "audio_data", "video_data", "modalities"),
        *("lora_path", "custom_logit_processor"),
        *("return_hidden_states", "return_routed_experts", "bootstrap_host"),
    ),
    NOT_YET,
)
_REFUSED_SAMPLING: Final = dict.fromkeys(
    (
        *("json_schema", "regex", "ebnf", "choices", "structural_tag"),
        *("custom_params", "stop_regex_flags"),
    ),
    NOT_YET,
)
# Asked of other servers; they change nothing in an answer here.
_HARMLESS: Final = dict.fromkeys(
    (
        *("log_metrics", "data_parallel_rank"),
        *("bootstrap_port", "conversation_id"),
    ),
    "",
)


class GenerateBody(msgspec.Struct, frozen=True):
    """The body of `/generate`; a list of prompts may have lists of the rest."""

    text: str | list[str] | None = None
    input_ids: list[int | list[int]] | None = None
    sampling_params: dict[str, msgspec.Raw] | list[dict[str, msgspec.Raw]] | None = None
    rid: str | list[str] | None = None
    stream: bool = False
    incremental: bool = False
    return_logprob: bool | list[bool] | None = None
    logprob_start_len: int | list[int] | None = None
    top_logprobs_num: int | list[int] | None = None
    token_ids_logprob: list[int | list[int] | None] | None = None
    return_text_in_logprobs: bool = False
    return_prompt_token_ids: bool = False
    session_params: dict[str, msgspec.Raw] | None = None
    session_id: str | None = None
    priority: int | None = None
    timeout: float | None = None
    cache_salt: str | None = None
    extra_key: str | list[str] | None = None


@dataclass(frozen=True, slots=True)
class GenerateCall:
    """A checked body. `is_list`: the client gets a list, and frames carry their `index`."""

    ask: Ask
    rid: str
    is_list: bool
    is_stream: bool
    is_incremental: bool
    has_logprob_text: bool
    has_prompt_ids: bool


def parse_generate(body: bytes) -> GenerateCall:
    """Raises RequestError naming the field."""
    names = names_of(body)
    refuse_named(names, _REFUSED)
    refuse_unknown(names, GenerateBody, {**_REFUSED, **_HARMLESS})
    asked = parse(body, GenerateBody)
    prompts, is_batch = _prompts(asked)
    count = len(prompts)
    params = _sampling(asked.sampling_params, count)
    rids = asked.rid if isinstance(asked.rid, list) else None
    if rids is not None and (not is_batch or len(rids) != count):
        raise RequestError(f"rid must be one string or {count} strings.", param="rid")
    rid = request_id(asked.rid) if not isinstance(asked.rid, list) else None
    wishes = tuple(
        Wish(
            prompt=prompt,
            sampling=params[i],
            logprobs=_logprobs(asked, i, count),
            rid=None if rids is None else rids[i],
            namespace=namespace_of(asked.cache_salt, _each(asked.extra_key, i, count, "extra_key")),
        )
        for i, prompt in enumerate(prompts)
    )
    return GenerateCall(
        ask=Ask(
            wishes,
            rid=rid,
            priority=asked.priority or 0,
            timeout_s=seconds(asked.timeout, "timeout"),
            session=session_wish(asked.session_params, asked.session_id),
        ),
        rid=rids[0] if rid is None and rids else (rid or ""),
        is_list=is_batch or any(p.n > 1 for p in params),
        is_stream=asked.stream,
        is_incremental=asked.incremental,
        has_logprob_text=asked.return_text_in_logprobs,
        has_prompt_ids=asked.return_prompt_token_ids,
    )


def _prompts(asked: GenerateBody) -> tuple[list[Prompt], bool]:
    """The prompts, and whether they came as a list."""
    if (asked.text is None) == (asked.input_ids is None):
        raise RequestError("Give exactly one of text and input_ids.", param="text")
    if isinstance(asked.text, str):
        return [TextPrompt(asked.text)], False
    if asked.text is not None:
        if not asked.text:
            raise RequestError("text must not be an empty list.", param="text")
        return [TextPrompt(text) for text in asked.text], True
    assert asked.input_ids is not None, "one of the two was given"
    return token_prompts(asked.input_ids, "input_ids")


def token_prompts(ids: list[int | list[int]], param: str) -> tuple[list[Prompt], bool]:
    """One prompt of ids, or a list of them (True). Raises RequestError for a mixture."""
    if not ids:
        raise RequestError(f"{param} must not be empty.", param=param)
    flat = [i for i in ids if isinstance(i, int)]
    if len(flat) == len(ids):
        return [TokenPrompt(tuple(flat))], False
    lists = [i for i in ids if isinstance(i, list)]
    if len(lists) != len(ids):
        raise RequestError(f"{param} must be ids, or lists of ids, not both.", param=param)
    return [TokenPrompt(tuple(one)) for one in lists], True


def _sampling(
    given: dict[str, msgspec.Raw] | list[dict[str, msgspec.Raw]] | None, count: int
) -> list[SamplingParams]:
    if not isinstance(given, list):
        return [_sampling_one(given or {}, "sampling_params")] * count
    if len(given) != count:
        raise RequestError(
            f"sampling_params must be one object or {count} objects, got {len(given)}.",
            param="sampling_params",
        )
    return [_sampling_one(one, f"sampling_params[{i}]") for i, one in enumerate(given)]


def _sampling_one(names: Names, within: str) -> SamplingParams:
    refuse_named(names, _REFUSED_SAMPLING, within=within)
    refuse_unknown(names, SamplingParams, _REFUSED_SAMPLING, within=within)
    # null says "the default", but for max_new_tokens it says "no limit".
    kept = {
        name: value
        for name, value in names.items()
        if name not in _REFUSED_SAMPLING and (name == "max_new_tokens" or bytes(value) != b"null")
    }
    return parse(msgspec.json.encode(kept), SamplingParams, within=within)


def _logprobs(asked: GenerateBody, index: int, count: int) -> LogprobsWanted:
    if not _each(asked.return_logprob, index, count, "return_logprob"):
        return NO_LOGPROBS
    top = _each(asked.top_logprobs_num, index, count, "top_logprobs_num") or 0
    if not 0 <= top <= MAX_TOP_LOGPROBS:
        raise RequestError(
            f"top_logprobs_num must be in [0, {MAX_TOP_LOGPROBS}], got {top}.",
            param="top_logprobs_num",
        )
    start = _each(asked.logprob_start_len, index, count, "logprob_start_len")
    if start is not None and start < -1:
        raise RequestError(
            f"logprob_start_len must be -1 or at least 0, got {start}.", param="logprob_start_len"
        )
    return LogprobsWanted(
        chosen=True,
        prompt_from=-1 if start is None else start,
        top=top,
        token_ids=_picked(asked.token_ids_logprob, index, count),
    )


def _each(given: V | list[V] | None, index: int, count: int, param: str) -> V | None:
    """The value for one prompt of what was given once for all, or as a list."""
    if not isinstance(given, list):
        return given
    if len(given) != count:
        raise RequestError(f"{param} must be one value or {count} values.", param=param)
    value: V = given[index]
    return value


def _picked(
    given: Sequence[int | list[int] | None] | None, index: int, count: int
) -> tuple[int, ...]:
    if not given:
        return ()
    flat = [i for i in given if isinstance(i, int)]
    if len(flat) == len(given):
        return tuple(flat)
    if flat or len(given) != count:
        raise RequestError(
            f"token_ids_logprob must be ids, or {count} lists of ids.", param="token_ids_logprob"
        )
    own = given[index]
    return tuple(own) if isinstance(own, list) else ()
