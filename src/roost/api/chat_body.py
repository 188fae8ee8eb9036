"""What `/v1/chat/completions` takes, turned into an ask."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from roost.api.body import NOT_YET, names_of, parse, refuse_named
from roost.api.openai_sampling import REFUSED, CallFields, SamplingFields, sampling_of
from roost.api.service import request_id
from roost.core.errors import RequestError
from roost.core.params import MAX_TOP_LOGPROBS
from roost.core.request import NO_LOGPROBS, LogprobsWanted
from roost.frontend import Ask, ChatPrompt, Wish

_REFUSED: Final[Mapping[str, str]] = {
    **REFUSED,
    **dict.fromkeys(("tools", "functions", "audio", "prediction", "web_search_options"), NOT_YET),
    **dict.fromkeys(("chat_template", "documents", "echo"), NOT_YET),
}
# Values of fields that are refused otherwise, and that ask for what happens anyway.
_PLAIN: Final = {
    "response_format": {b'{"type":"text"}'},
    "tool_choice": {b'"none"', b'"auto"'},
    "function_call": {b'"none"', b'"auto"'},
    "modalities": {b'["text"]'},
}
_Tokens = Annotated[int, Meta(ge=0)]


class ContentPart(msgspec.Struct, frozen=True):
    type: str
    text: str | None = None


class ChatMessage(msgspec.Struct, frozen=True):
    """One message. `content` may be null or absent where an assistant said nothing."""

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | list[ContentPart] | None = None
    name: str | None = None
    tool_calls: list[dict[str, object]] | None = None
    function_call: dict[str, object] | None = None


class ChatFields(msgspec.Struct, frozen=True):
    """The fields of a chat call that are neither sampling's nor every call's."""

    messages: list[ChatMessage]
    max_tokens: _Tokens | None = None
    max_completion_tokens: _Tokens | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    chat_template_kwargs: dict[str, object] | None = None
    reasoning_effort: str | None = None
    continue_final_message: bool | None = None
    add_generation_prompt: bool | None = None


@dataclass(frozen=True, slots=True)
class ChatCall:
    """A checked body."""

    ask: Ask
    rid: str
    model: str | None
    is_stream: bool
    includes_usage: bool
    has_logprobs: bool


def parse_chat(body: bytes) -> ChatCall:
    """Raises RequestError naming the field."""
    names = {
        name: value
        for name, value in names_of(body).items()
        if _squeezed(bytes(value)) not in _PLAIN.get(name, ())
    }
    later = {**_REFUSED, **dict.fromkeys(_PLAIN, NOT_YET)}
    refuse_named(names, later)
    common = parse(body, CallFields)
    common.check()
    fields = parse(body, ChatFields)
    sampling = parse(body, SamplingFields)
    if fields.top_logprobs and not fields.logprobs:
        raise RequestError("top_logprobs needs logprobs to be true.", param="top_logprobs")
    max_new = fields.max_completion_tokens
    wanted = NO_LOGPROBS
    if fields.logprobs:
        wanted = LogprobsWanted(chosen=True, top=fields.top_logprobs or 0)
    wish = Wish(
        prompt=chat_prompt(fields),
        sampling=sampling_of(sampling, fields.max_tokens if max_new is None else max_new),
        logprobs=wanted,
        namespace=common.namespace,
    )
    rid = request_id(common.rid, "chatcmpl-")
    return ChatCall(
        ask=Ask(
            (wish,),
            rid=rid,
            priority=common.priority or 0,
            timeout_s=common.timeout,
            overflow="clamp",
            session=common.session,
        ),
        rid=rid,
        model=common.model,
        is_stream=bool(common.stream),
        includes_usage=common.includes_usage,
        has_logprobs=bool(fields.logprobs),
    )


def chat_prompt(fields: ChatFields) -> ChatPrompt:
    """The messages as a template takes them. Raises RequestError."""
    if not fields.messages:
        raise RequestError("messages must not be empty.", param="messages")
    messages = tuple(_message(m, f"messages[{i}]") for i, m in enumerate(fields.messages))
    is_continued = bool(fields.continue_final_message)
    if is_continued and fields.messages[-1].role != "assistant":
        raise RequestError(
            "continue_final_message needs a last message of the assistant.",
            param="continue_final_message",
        )
    extras: dict[str, object] = {}
    if fields.reasoning_effort is not None:
        extras["reasoning_effort"] = fields.reasoning_effort
    extras |= fields.chat_template_kwargs or {}
    generates = fields.add_generation_prompt
    return ChatPrompt(
        messages,
        add_generation_prompt=not is_continued if generates is None else generates,
        continue_final_message=is_continued,
        template_kwargs=extras,
    )


def _message(message: ChatMessage, path: str) -> dict[str, object]:
    if message.tool_calls or message.function_call is not None:
        raise RequestError(f"{path}.tool_calls {NOT_YET}.", param=f"{path}.tool_calls")
    if message.role in ("tool", "function"):
        raise RequestError(f"{path}.role: {message.role} {NOT_YET}.", param=f"{path}.role")
    # Templates know no developer: it is what newer clients call the system.
    shaped: dict[str, object] = {
        "role": "system" if message.role == "developer" else message.role,
        "content": _content(message.content, path),
    }
    if message.name is not None:
        shaped["name"] = message.name
    return shaped


def _content(content: str | list[ContentPart] | None, path: str) -> str | list[dict[str, str]]:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    parts = []
    for i, part in enumerate(content):
        where = f"{path}.content[{i}]"
        if part.type != "text":
            raise RequestError(
                f"{where}: parts of type {part.type[:40]!r} are not supported; this model takes "
                "text.",
                param=where,
            )
        if part.text is None:
            raise RequestError(f"{where}: a part of type text must have a text.", param=where)
        parts.append({"type": "text", "text": part.text})
    return parts


def _squeezed(text: bytes) -> bytes:
    """Short JSON without its spaces; long JSON is none of the values that are looked for."""
    return text if len(text) > 64 else b"".join(text.split())
