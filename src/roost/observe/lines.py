"""A log record as one line, for people or as JSON; what a client sent begins none of its own."""

import json
import logging
from datetime import UTC, datetime
from typing import Final

_EMPTY: Final = logging.LogRecord("", 0, "", 0, "", None, None)
_USUAL: Final = frozenset(vars(_EMPTY)) | {"message", "asctime", "taskName"}

_LEVEL_CHARS: Final = 9
_MESSAGE_CHARS: Final = 30  # fields of short messages stand below each other
_DIM, _BOLD, _CYAN, _RESET = "\x1b[2m", "\x1b[1m", "\x1b[36m", "\x1b[0m"
_LEVEL_COLOURS: Final = {
    "debug": "\x1b[32m",
    "info": "\x1b[32m",
    "warning": "\x1b[33m",
    "error": "\x1b[31m",
    "critical": "\x1b[31m",
}


class ConsoleLines(logging.Formatter):
    """`2026-01-31T12:00:00.000000Z [info     ] message   key=value key='two words'`"""

    def __init__(self, *, has_colours: bool) -> None:
        super().__init__()
        self._has_colours = has_colours

    def format(self, record: logging.LogRecord) -> str:
        level = record.levelname.lower()
        fields = [
            f"{self._in(_CYAN, key)}={_shown(value)}" for key, value in _fields(record).items()
        ]
        message = _one_line(record.getMessage())
        line = " ".join(
            (
                self._in(_DIM, _time_of(record)),
                f"[{self._in(_LEVEL_COLOURS.get(level, ''), f'{level:<{_LEVEL_CHARS}}')}]",
                self._in(_BOLD, f"{message:<{_MESSAGE_CHARS}}" if fields else message),
                *fields,
            )
        )
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line

    def _in(self, colour: str, text: str) -> str:
        return f"{colour}{text}{_RESET}" if self._has_colours and colour else text


class JsonLines(logging.Formatter):
    """One object a line: `timestamp`, `level`, `logger`, `event`, then the record's own fields."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "timestamp": _time_of(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
            **_fields(record),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        # What JSON has no form for is logged as its repr: a log line never raises.
        return json.dumps(line, default=repr)


def _fields(record: logging.LogRecord) -> dict[str, object]:
    """What was given as `extra`."""
    return {key: value for key, value in vars(record).items() if key not in _USUAL}


def _time_of(record: logging.LogRecord) -> str:
    moment = datetime.fromtimestamp(record.created, UTC)
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")


def _shown(value: object) -> str:
    """A plain word as it is, anything else as its repr."""
    text = str(value)
    return text if text.isascii() and text.isprintable() and " " not in text else repr(value)


def _one_line(message: str) -> str:
    """Without line breaks, and without what would steer a terminal."""
    message = message.strip()
    if message.isprintable():
        return message
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in message)
