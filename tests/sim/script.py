"""What is done to a simulated house: a list of actions, as data that can be kept and replayed."""

from collections.abc import Sequence
from typing import Final, Literal

import msgspec

from roost.cache import Eviction
from roost.core.calls import LogLevel, PauseMode

Way = Literal["up", "down"]


class Layout(msgspec.Struct, frozen=True):
    """How big everything is, and how slow the network."""

    num_fronts: int = 3
    num_pages: int = 12
    max_running: int = 4
    max_queued: int = 30
    step_s: float = 0.02
    spread_s: float = 0.01
    queue_timeout_s: float = 20.0
    session_timeout_s: float = 30.0
    max_sessions: int = 4
    session_busy: Literal["wait", "refuse"] = "wait"
    eviction: Eviction = "lru"
    speculates: bool = False


class Turn(msgspec.Struct, frozen=True, omit_defaults=True):
    """parent: the rid of an earlier turn."""

    session: str
    parent: str | None = None
    offset: int = 0
    drops_output: bool = False
    replaces: bool = False


class Ask(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """A client asks a worker for `n` answers. name: the call's, and with n = 1 the rid.

    tokenise_s: how long its prompt is prepared. is_bad: with an id that no model has. namespace: of
    its cache. scores_from: from which prompt token on logprobs are wanted; −1: none.
    """

    front: int
    name: str
    prompt: tuple[int, ...] = (1, 2, 3)
    new: int = 8
    seed: int = 0
    n: int = 1
    stop_id: int | None = None
    timeout_s: float | None = None
    tokenise_s: float = 0.005
    is_bad: bool = False
    turn: Turn | None = None
    namespace: str = ""
    scores_from: int = -1


class Probe(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """A health check that generates."""

    front: int


class Leave(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """The client of this call goes, with all its answers."""

    name: str


class AbortCall(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """Somebody asks this worker to abort what is named so; None: everything."""

    front: int
    name: str | None


class Open(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    front: int
    session: str
    timeout_s: float | None = None
    capacity: int = 0


class Close(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    front: int
    session: str


class ListThem(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    front: int


class PauseIt(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    front: int
    mode: PauseMode


class ResumeIt(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    front: int


class Flush(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """timeout_s: until when nothing may live; None: it does not matter."""

    front: int
    timeout_s: float | None = 0.0


class Level(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    front: int
    level: LogLevel


class Kill(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """A worker dies at once, and its next life begins. goodbye_s: when the supervisor says so;
    None: never. tail_s: what it had sent still arrives for so long.
    """

    front: int
    goodbye_s: float | None = 0.1
    tail_s: float = 0.0
    restart_s: float = 0.2


class Stall(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """A worker does nothing for a while, and hears nothing."""

    front: int
    seconds: float


class StallEngine(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    seconds: float


class Lose(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    front: int
    way: Way
    count: int = 1


class Delay(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    front: int
    way: Way
    seconds: float


class BreakStep(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """The next step of the engine cannot be computed."""


class FaultRow(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """From now on the model gives nothing usable for requests of this rid."""

    rid: str


class Shut(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """A worker ends everything that it has, as at the end of its drain timeout."""

    front: int


class Wait(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    seconds: float


Calling = AbortCall | Open | Close | ListThem | PauseIt | ResumeIt | Flush | Level
Action = (
    Ask
    | Probe
    | Leave
    | Calling
    | Kill
    | Stall
    | StallEngine
    | Lose
    | Delay
    | BreakStep
    | FaultRow
    | Shut
    | Wait
)


class Script(msgspec.Struct, frozen=True):
    """seed: of the network's delays; the script of a seed is drawn elsewhere."""

    seed: int
    layout: Layout
    actions: tuple[Action, ...]


_ENCODER: Final = msgspec.json.Encoder()


def to_text(script: Script) -> str:
    """One action a line, as `tools/simulate.py --replay` reads it."""
    head = {"seed": script.seed, "layout": script.layout}
    lines = [_ENCODER.encode(head), *(_ENCODER.encode(action) for action in script.actions)]
    return b"\n".join(lines).decode() + "\n"


class _Head(msgspec.Struct):
    seed: int
    layout: Layout


def from_text(text: str) -> Script:
    """Raises msgspec.DecodeError for what `to_text` would not write."""
    first, *rest = [line for line in text.splitlines() if line.strip()]
    head = msgspec.json.decode(first, type=_Head)
    actions: Sequence[Action] = [msgspec.json.decode(line, type=Action) for line in rest]
    return Script(head.seed, head.layout, tuple(actions))
