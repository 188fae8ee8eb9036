"""The frontend: one asyncio object a process, between the API layer and the engine's corridor."""

from collections.abc import AsyncIterator
from typing import Protocol

from roost.core.request import RequestId
from roost.frontend.ask import Ask
from roost.frontend.piece import AnswerHead, Piece
from roost.wire.messages import ControlDone, Load, ModelFacts


class Answers(Protocol):
    """The answers of one ask, as they come; pieces of different answers interleave.

    Iterate to the end, or `aclose()`: leaving early cancels what still runs, at once, as a client
    that has gone. Closing twice is harmless. Each answer's last piece has `ended`; after the last
    of them the iteration stops. It never raises for an ending: `Piece.ended` says what happened
    (`roost.frontend.refusal_of(ended)` gives the error for one that is no answer).
    """

    heads: tuple[AnswerHead, ...]

    def __aiter__(self) -> AsyncIterator[Piece]: ...

    async def __anext__(self) -> Piece: ...

    async def aclose(self) -> None: ...


class FrontendFace(Protocol):
    """The verbs of `Frontend`."""

    async def open(self, timeout_s: float) -> None:
        """Say Hello and wait for the engine's Welcome. Raises EngineFault when none comes."""

    async def submit(self, ask: Ask) -> Answers:
        """Returns when the engine has accepted every answer's request.

        Raises RequestError (and its kinds) for what is known before the first byte: nothing of
        the ask then runs. Cancelling this call cancels the ask.
        """
        ...

    def abort(self, rid: str, message: str = "") -> bool:
        """End that answer, or every answer of the call named so, with CLIENT_CANCELLED.

        False: this front does not know it (the engine was told anyway: another front may)."""
        ...

    async def abort_all(self) -> ControlDone: ...

    async def control(self, verb: str, argument: str = "") -> ControlDone:
        """Raises DeadlinePassed when the engine does not answer in `control_timeout_s`."""
        ...

    async def check_generates(self, timeout_s: float) -> bool:
        """Whether a token comes (or anybody's output shows that the engine steps)."""
        ...

    async def encode(self, text: str, *, add_special: bool = True) -> list[int]: ...

    async def render(self, ask: Ask) -> tuple[str, list[int]]:
        """The text and ids that the first wish's prompt becomes (for /tokenize of messages)."""
        ...

    def decode(self, ids: tuple[int, ...], *, skip_special: bool = True) -> str: ...

    def token_bytes(self, token_id: int) -> bytes: ...

    @property
    def facts(self) -> ModelFacts: ...

    @property
    def load(self) -> Load: ...

    def is_alive(self) -> bool:
        """The engine was heard within `heartbeat_timeout_s`."""
        ...

    def is_ready(self) -> bool:
        """Alive, and not draining."""
        ...

    def drain(self) -> None:
        """Refuse new asks with ShuttingDown; let the running ones go on."""

    def live(self) -> tuple[RequestId, ...]: ...

    def metrics(self) -> bytes:
        """This process's metrics, in Prometheus' text format."""
        ...

    async def close(self) -> None:
        """End what is live as SHUTTING_DOWN, say Goodbye, and leave nothing behind."""
