"""From the bytes of a request to a typed body, or a 4xx that names the field."""

import difflib
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final, TypeVar, get_type_hints

import msgspec
from starlette.requests import Request

from roost.api.problems import UnsupportedMediaType
from roost.api.sse import ClientGone
from roost.core.errors import RequestError, TooLarge

_JSON_TYPE = re.compile(r"application/(?:[\w.+-]+\+)?json\s*(?:;.*)?", re.ASCII | re.IGNORECASE)
_AT = re.compile(r" - at `(?:key in )?\$\.?(.*)`$")
# Why a field is refused that would change the answer, and that is not built.
NOT_YET: Final = "is not supported by this version"
_LEAST_INT: Final = -(1 << 63)
_MOST_INT: Final = (1 << 64) - 1
# JSON texts of values that ask for nothing.
_NOTHING: Final = frozenset({b"null", b"false", b"[]", b"{}", b'""'})

NOTHING_ELSE: Final[Mapping[str, str]] = {}

T = TypeVar("T", bound=msgspec.Struct)
Names = Mapping[str, msgspec.Raw]
_decode_names = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


async def read_body(request: Request, max_bytes: int) -> bytes:
    """The whole body. Raises UnsupportedMediaType, TooLarge or ClientGone."""
    _check_type(request)
    return await _read(request, max_bytes)


async def read_fields(
    request: Request,
    max_bytes: int,
    body_type: type[T],
    *,
    refused: Mapping[str, str] = NOTHING_ELSE,
    ignored: Mapping[str, str] = NOTHING_ELSE,
) -> T:
    """What a call on the server was given, in a JSON body or in the query: clients use either.

    refused: further fields and why they cannot be had. ignored: those that change nothing.
    Raises RequestError naming the field, UnsupportedMediaType, TooLarge or ClientGone.
    """
    body = await _read(request, max_bytes)
    query = request.query_params.multi_items()
    if body:
        _check_type(request)
        if query:
            raise RequestError("Give the fields in the body or in the query, not in both.")
        names = names_of(body)
    else:
        names = {name: msgspec.Raw(value.encode() or b'""') for name, value in query}
    refuse_named(names, refused)
    refuse_unknown(names, body_type, {**refused, **ignored})
    return parse(body, body_type) if body else _from_query(query, body_type)


def _from_query(query: Sequence[tuple[str, str]], body_type: type[T]) -> T:
    for name, count in Counter(name for name, _ in query).items():
        if count > 1:
            raise RequestError(f"{name[:80]} is given {count} times.", param=name[:80])
    try:
        found = msgspec.convert(dict(query), type=body_type, strict=False)
    except msgspec.ValidationError as exc:
        raise _refusal_of(exc, "") from None
    _check_ints(found, "")
    return found


def seconds(value: float | None, name: str, *, is_zero_fine: bool = False) -> float | None:
    """A span that was given, checked. Raises RequestError."""
    if value is None or 0 < value < math.inf or (is_zero_fine and value == 0):
        return value
    least = "at least" if is_zero_fine else "greater than"
    raise RequestError(f"{name} must be seconds {least} 0.", param=name)


def short_text(value: str | None, name: str, max_chars: int, *, min_chars: int = 1) -> str | None:
    """A text that was given, checked in its length. Raises RequestError."""
    if value is None or min_chars <= len(value) <= max_chars:
        return value
    raise RequestError(f"{name} must be {min_chars} to {max_chars} characters.", param=name)


def _check_type(request: Request) -> None:
    if not _JSON_TYPE.fullmatch(request.headers.get("content-type", "")):
        raise UnsupportedMediaType("The Content-Type must be application/json.")


async def _read(request: Request, max_bytes: int) -> bytes:
    too_large = TooLarge(f"The request body is larger than {max_bytes} bytes.")
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > max_bytes:
        raise too_large
    pieces, size = [], 0
    while True:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        pieces.append(message.get("body", b""))
        size += len(pieces[-1])
        if size > max_bytes:
            raise too_large
        if not message.get("more_body", False):
            return b"".join(pieces)


def names_of(body: bytes) -> Names:
    """The fields of a JSON object, their values not yet looked into. Raises RequestError."""
    try:
        return _decode_names(body)
    except msgspec.ValidationError as exc:
        if "Number out of range" in str(exc):
            raise RequestError("The body holds a number that is out of range.") from None
        raise RequestError("The body must be a JSON object.") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise RequestError(f"The body is not valid JSON: {exc}") from None


def parse(body: bytes, body_type: type[T], *, within: str = "") -> T:
    """A typed body; `within` is where it stands, for messages. Raises RequestError."""
    try:
        found_body = msgspec.json.decode(body, type=body_type)
    except msgspec.ValidationError as exc:
        raise _refusal_of(exc, within) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise RequestError(f"The body is not valid JSON: {exc}") from None
    _check_ints(found_body, within)
    return found_body


def refuse_named(names: Names, refused: Mapping[str, str], *, within: str = "") -> None:
    """Raises RequestError for the first of `refused` (name → why) that asks for something."""
    for name, why in refused.items():
        if name in names and bytes(names[name]) not in _NOTHING:
            path = f"{within}.{name}" if within else name
            raise RequestError(f"{path} {why}.", param=path)


def refuse_unknown(
    names: Names, body_type: type[msgspec.Struct], also: Mapping[str, str], *, within: str = ""
) -> None:
    """Raises RequestError for a field that is neither of `body_type` nor in `also`."""
    known = {*get_type_hints(body_type), *also}
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(name[:80], known, n=1)
            hint = f" Did you mean {near[0]}?" if near else ""
            path = f"{within}.{name[:80]}" if within else name[:80]
            raise RequestError(f"Unknown field {path}.{hint}", param=path)


def _check_ints(body: msgspec.Struct, within: str) -> None:
    """Raises RequestError for a field whose number no message can carry: JSON's have no end."""
    for name in body.__struct_fields__:
        value = getattr(body, name)
        if isinstance(value, int) and not _LEAST_INT <= value <= _MOST_INT:
            path = f"{within}.{name}" if within else name
            raise RequestError(f"{path}: Expected a number of 64 bits.", param=path)


def _refusal_of(exc: msgspec.ValidationError, within: str) -> RequestError:
    message = str(exc)
    found = _AT.search(message)
    path = ".".join(p for p in (within, found[1] if found else "") if p)
    what = _AT.sub("", message).replace("`", "")
    return RequestError(
        f"{path}: {what}." if path else f"{what}.", param=path or _named_field(message)
    )


def _named_field(message: str) -> str | None:
    found = re.search(r"(?:required|unknown) field `([^`]*)`", message)
    return found[1] if found else None
