"""What the supervisor and its children say to each other: one JSON object a line, over pipes.

supervisor ──stdin──▶ child    its Job first, then Orders; the end of it means: your parent died
supervisor ◀──pipe─── child    News: how far it is, that it is ready, or why it cannot be
"""

import os
from typing import Generic, TypeVar

import msgspec

from roost.core.config import ServeConfig


class Job(msgspec.Struct, frozen=True, tag="job"):
    """What a child is to be.

    role: "engine" or "http". worker, epoch: which HTTP worker, and which life of it; the engine's
    life is its epoch. directory: where the sockets are. news_fd, listen_fd: inherited descriptors
    (listen_fd −1: none). reasons: where each setting comes from, for people.
    """

    role: str
    config: ServeConfig
    reasons: dict[str, str]
    directory: str
    parent_pid: int
    worker: int
    epoch: int
    news_fd: int
    listen_fd: int = -1


class Drain(msgspec.Struct, frozen=True, tag="drain"):
    """Take nothing new, finish what runs in `timeout_s`, then say Drained."""

    timeout_s: float


class Leave(msgspec.Struct, frozen=True, tag="leave"):
    """Nothing runs anywhere any more: end."""


class EngineLost(msgspec.Struct, frozen=True, tag="engine_lost"):
    """The engine is dead: end what lives as its fault, then end."""

    message: str


class Serve(msgspec.Struct, frozen=True, tag="serve"):
    """All can serve: take connections, and say that you are ready."""


Order = Serve | Drain | Leave | EngineLost


class Progress(msgspec.Struct, frozen=True, tag="progress"):
    """Weights are being prepared: bytes done, of bytes in all."""

    num_done: int
    num_total: int


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """It can serve. `facts`: a line for people, or empty."""

    facts: str = ""


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """It cannot serve, and ends. The message is worded for people."""

    message: str


class LogLevelSet(msgspec.Struct, frozen=True, tag="log_level_set"):
    """A call changed the least level that is logged, for all."""

    level: str


class Drained(msgspec.Struct, frozen=True, tag="drained"):
    """Nothing runs here any more; whoever asks is still told so."""


News = Progress | Ready | Failed | LogLevelSet | Drained

_Line = TypeVar("_Line")


class Lines(Generic[_Line]):
    """Whole lines from a descriptor, decoded. `is_ended` after the other end was closed."""

    def __init__(self, fd: int, decoder: "msgspec.json.Decoder[_Line]") -> None:
        self.fd = fd
        self._decoder = decoder
        self._rest = b""
        self.is_ended = False

    def read(self) -> list[_Line]:
        """What has come since the last call. Waits for something if the descriptor blocks."""
        try:
            data = os.read(self.fd, 1 << 16)
        except BlockingIOError:
            return []
        self.is_ended = not data
        *lines, self._rest = (self._rest + data).split(b"\n")
        return [self._decoder.decode(line) for line in lines]


def news_lines(fd: int) -> Lines[News]:
    return Lines(fd, msgspec.json.Decoder(News))


def order_lines(fd: int) -> Lines[Job | Order]:
    return Lines(fd, msgspec.json.Decoder(Job | Order))


def say(fd: int, message: Job | Order | News) -> bool:
    """Write one line. False when nobody is at the other end any more."""
    data = msgspec.json.encode(message) + b"\n"
    try:
        while data:
            data = data[os.write(fd, data) :]
    except BrokenPipeError:
        return False
    return True
