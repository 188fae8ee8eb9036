"""The sampling fields of the OpenAI routes, with the native ones as extensions."""

from collections.abc import Mapping
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from roost.api.body import NOT_YET, seconds
from roost.api.namespaces import namespace_of
from roost.api.session_params import session_wish
from roost.core.errors import RequestError
from roost.core.params import SamplingParams
from roost.frontend import SessionWish

_Tokens = Annotated[int, Meta(ge=0)]

# Fields that would change the answer, and that are not built: refused, never ignored.
REFUSED: Final[Mapping[str, str]] = dict.fromkeys(
    (
        *("response_format", "json_schema", "regex", "ebnf", "structural_tag", "choices"),
        *("guided_json", "guided_regex", "guided_choice", "guided_grammar", "structured_outputs"),
        *("lora_path", "custom_logit_processor", "custom_params"),
        *("return_hidden_states", "prompt_logprobs", "truncate_prompt_tokens", "use_beam_search"),
        *("allowed_token_ids", "bad_words", "include_stop_str_in_output"),
    ),
    NOT_YET,
)


class SamplingFields(msgspec.Struct, frozen=True):
    """Read from the same body as the rest of the call; null is the default everywhere."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    n: int | None = None
    seed: int | None = None
    sampling_seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    stop_regex: str | list[str] | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    min_tokens: _Tokens | None = None
    ignore_eos: bool | None = None
    no_stop_trim: bool | None = None
    skip_special_tokens: bool | None = None
    spaces_between_special_tokens: bool | None = None


class CallFields(msgspec.Struct, frozen=True):
    """What a call says about itself rather than about the answer."""

    model: str | None = None
    stream: bool | None = None
    stream_options: "StreamOptions | None" = None
    rid: str | None = None
    priority: int | None = None
    timeout: float | None = None
    session_params: dict[str, msgspec.Raw] | None = None
    session_id: str | None = None
    cache_salt: str | None = None
    extra_key: str | None = None

    def check(self) -> None:
        """Raises RequestError for fields that contradict each other."""
        if self.stream_options is not None and not self.stream:
            raise RequestError(
                "stream_options is only allowed when stream is true.", param="stream_options"
            )
        seconds(self.timeout, "timeout")

    @property
    def session(self) -> SessionWish | None:
        """Raises RequestError."""
        return session_wish(self.session_params, self.session_id)

    @property
    def namespace(self) -> str:
        """Raises RequestError."""
        return namespace_of(self.cache_salt, self.extra_key)

    @property
    def includes_usage(self) -> bool:
        return self.stream_options is not None and bool(self.stream_options.include_usage)


class StreamOptions(msgspec.Struct, frozen=True):
    include_usage: bool | None = None


def sampling_of(fields: SamplingFields, max_new_tokens: int | None) -> SamplingParams:
    """The native parameters; `max_new_tokens` None: to the end of the context."""
    given: dict[str, object] = {
        name: value for name, value in msgspec.structs.asdict(fields).items() if value is not None
    }
    if "min_tokens" in given:
        given["min_new_tokens"] = given.pop("min_tokens")
    return msgspec.convert({**given, "max_new_tokens": max_new_tokens}, SamplingParams)
