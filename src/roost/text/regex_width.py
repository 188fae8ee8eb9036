"""How long a match of a regular expression can be."""

from collections.abc import Iterable
from re import IGNORECASE, _constants, _parser  # type: ignore[attr-defined]
from re import error as RegexError  # noqa: N812 (the name it gets in 3.13)
from typing import Final, cast

# Python and RE2 read these differently (POSIX classes), or Python warns that it will one day.
_READ_DIFFERENTLY: Final = ("[[", "[:", "--", "&&", "~~", "||")
_MAX_UTF8: Final = 4
_Node = tuple[object, object]


def max_match_bytes(pattern: str) -> int | None:
    r"""The most UTF-8 bytes that deciding on a match takes; None: no bound, or none known.

    An assertion (`^`, `\b`) counts as one byte: it may need to see the byte behind the match.
    The pattern is one that RE2 took; its syntax is read as Python's, and where that cannot be
    done the answer is None.
    """
    if any(sign in pattern for sign in _READ_DIFFERENTLY):
        return None
    try:
        parsed = _parser.parse(pattern)
    except (RegexError, RecursionError, OverflowError):
        return None
    return _sequence(parsed, bool(parsed.state.flags & IGNORECASE))


def _sequence(nodes: Iterable[_Node], ignore_case: bool) -> int | None:
    total = 0
    for op, argument in nodes:
        width = _node(op, argument, ignore_case)
        if width is None:
            return None
        total += width
    return total


def _node(op: object, argument: object, ignore_case: bool) -> int | None:
    if op is _constants.LITERAL:
        return _literal(cast("int", argument), ignore_case)
    if op in {_constants.ANY, _constants.NOT_LITERAL}:
        return _MAX_UTF8
    if op is _constants.AT:
        return 1
    if op is _constants.IN:
        return _set(cast("list[_Node]", argument), ignore_case)
    if op is _constants.BRANCH:
        _, branches = cast("tuple[None, list[list[_Node]]]", argument)
        widths = [_sequence(branch, ignore_case) for branch in branches]
        return None if None in widths else max(width or 0 for width in widths)
    if op is _constants.SUBPATTERN:
        _, added, removed, nodes = cast("tuple[object, int, int, list[_Node]]", argument)
        inside = (ignore_case or bool(added & IGNORECASE)) and not removed & IGNORECASE
        return _sequence(nodes, inside)
    if op in {_constants.MAX_REPEAT, _constants.MIN_REPEAT}:
        _, most, nodes = cast("tuple[int, int, list[_Node]]", argument)
        width = _sequence(nodes, ignore_case)
        return None if width is None or most == _constants.MAXREPEAT else width * most
    return None


def _literal(code: int, ignore_case: bool) -> int:
    if 0xD800 <= code <= 0xDFFF:
        return _MAX_UTF8
    # Folding may reach longer characters: K is also the Kelvin sign, s the long s.
    if ignore_case and (code > 0x7F or chr(code) in "kKsS"):
        return _MAX_UTF8
    return len(chr(code).encode())


def _set(items: list[_Node], ignore_case: bool) -> int:
    widest = 1
    for op, argument in items:
        if op is _constants.LITERAL:
            widest = max(widest, _literal(cast("int", argument), ignore_case))
        elif op is _constants.RANGE and not ignore_case:
            widest = max(widest, _literal(cast("tuple[int, int]", argument)[1], ignore_case))
        elif op is _constants.CATEGORY and argument in _ASCII_CATEGORIES:
            continue  # \d, \s and \w are ASCII to RE2
        else:
            return _MAX_UTF8
    return widest


_ASCII_CATEGORIES: Final = frozenset(
    {_constants.CATEGORY_DIGIT, _constants.CATEGORY_SPACE, _constants.CATEGORY_WORD}
)
