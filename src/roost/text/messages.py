"""Chat messages as a template wants them."""

import json
from collections.abc import Mapping, Sequence

from roost.core.errors import RequestError


def without_parts(
    messages: Sequence[Mapping[str, object]], *, keep_text_parts: bool
) -> list[dict[str, object]]:
    """Copies of the messages with plain content: text, or text parts if the template loops.

    Text parts are joined with a space, content that is null becomes "", and the arguments of a
    tool call become an object where they are JSON text of one. Raises RequestError for a part
    that is not text.
    """
    return [_plain(message, keep_text_parts) for message in messages]


def with_mark(message: Mapping[str, object], mark: str) -> dict[str, object]:
    """The message with `mark` behind its text.

    Raises RequestError if it ends in something that is not text.
    """
    content = message.get("content")
    if isinstance(content, str):
        return {**message, "content": content + mark}
    if isinstance(content, list) and content:
        *first, last = content
        return {**message, "content": [*first, {**last, "text": f"{last['text']}{mark}"}]}
    raise RequestError(
        "continue_final_message: the final message has no text to continue.",
        param="continue_final_message",
    )


def _plain(message: Mapping[str, object], keep_text_parts: bool) -> dict[str, object]:
    plain = dict(message)
    content = plain.get("content")
    if content is None:
        plain["content"] = ""
    elif isinstance(content, list | tuple):
        texts = [_text_of(part) for part in content]
        if keep_text_parts:
            plain["content"] = [{"type": "text", "text": text} for text in texts]
        else:
            plain["content"] = " ".join(texts)
    elif not isinstance(content, str):
        raise RequestError(
            f"A message's content is a string or a list of parts, not {content!r:.40}.",
            param="messages",
        )
    calls = plain.get("tool_calls")
    if isinstance(calls, list | tuple):
        plain["tool_calls"] = [_with_parsed_arguments(call) for call in calls]
    elif calls is None:
        plain.pop("tool_calls", None)
    return plain


def _text_of(part: object) -> str:
    if isinstance(part, str):
        return part
    kind = part.get("type", "text") if isinstance(part, Mapping) else type(part).__name__
    text = part.get("text") if isinstance(part, Mapping) else None
    if kind not in {"text", "input_text", "output_text"} or not isinstance(text, str):
        raise RequestError(
            f"This model takes text; a message has a part of type {kind!r:.40}.", param="messages"
        )
    return text


def _with_parsed_arguments(call: object) -> object:
    """The API carries arguments as JSON text; templates print them with `tojson`."""
    function = call.get("function") if isinstance(call, Mapping) else None
    arguments = function.get("arguments") if isinstance(function, Mapping) else None
    if not isinstance(call, Mapping) or not isinstance(function, Mapping):
        return call
    if not isinstance(arguments, str):
        return call
    try:
        parsed = json.loads(arguments)
    except ValueError:  # a model once wrote it; the next turn shows it as it was
        return call
    if not isinstance(parsed, dict):
        return call
    return {**call, "function": {**function, "arguments": parsed}}
