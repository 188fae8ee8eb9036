"""A network between workers and an engine: ordered lanes, on which messages take their time.

Each life of a worker has a lane up and a lane down. On a lane messages stay in order; those of
different lanes overtake each other at will. A message can be lost, a lane can be held up, and the
lanes of a life that was killed are cut: what is on them is lost, partly or as a whole.
"""

import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from tests.sim.agenda import Agenda

from roost.core.events import Ended
from roost.core.request import GenerateRequest, Origin
from roost.wire.messages import (
    Cancel,
    Control,
    ControlDone,
    Heartbeat,
    Noted,
    Notice,
    Outputs,
    ToEngine,
    ToWorker,
)

Way = Literal["up", "down"]

# A dead worker's address still takes messages for a while, at most for so long.
_NOTICED_S = 0.4


@dataclass(slots=True)
class _Lane:
    """One way between the engine and one life of a worker."""

    number: int
    # Nothing that is sent arrives before this.
    arrives_s: float = 0.0
    num_sent: int = 0
    num_to_lose: int = 0
    # What is sent at or after this is lost; and what would arrive after it, too.
    cut_s: float = float("inf")


@dataclass(slots=True)
class Losses:
    """What was lost on the way, by what it was about."""

    serials: set[tuple[Origin, int]] = field(default_factory=set)
    calls: set[str] = field(default_factory=set)
    notices: set[str] = field(default_factory=set)
    num: int = 0

    def note(self, origin: Origin, message: ToEngine | ToWorker) -> None:
        self.num += 1
        match message:
            case GenerateRequest(envelope=envelope):
                self.serials.add((envelope.origin, envelope.serial))
            case Cancel(serial=serial):
                self.serials.add((origin, serial))
            case Outputs(outputs=outputs):
                self.serials.update((origin, output.serial) for output in outputs)
            case Control(call_id=call_id) | ControlDone(call_id=call_id):
                self.calls.add(call_id)
            case Noted(call_id=call_id) | Notice(call_id=call_id):
                self.notices.add(call_id)
            case _:
                pass


class Network:
    """The engine's end (an `EngineSide`), and for each life of a worker a way to send up.

    spread_s: most seconds that a message usually takes; one in sixteen takes up to ten times that.
    """

    def __init__(self, agenda: Agenda, seed: int, spread_s: float) -> None:
        self.losses = Losses()
        self.num_up = 0
        # What the engine has heard in its last step.
        self.taken: list[ToEngine] = []
        # When the engine said that a request had ended.
        self.ended_s: dict[tuple[Origin, int], float] = {}
        self.num_malformed = 0
        self._agenda = agenda
        self._seed = seed
        self._spread_s = spread_s
        self._lanes: dict[tuple[Origin, Way], _Lane] = {}
        self._hearing: dict[Origin, Callable[[ToWorker], None]] = {}
        self._inbox: list[ToEngine] = []
        self._wake: Callable[[], None] = lambda: None

    # ---- the engine's end

    def receive(self) -> list[ToEngine]:
        self.taken, self._inbox = self._inbox, []
        return self.taken

    def wait(self, timeout_s: float) -> None:
        raise AssertionError("in virtual time nobody waits")

    def send(self, origin: Origin, message: ToWorker) -> bool:
        lane = self._lanes.get((origin, "down"))
        if lane is None or self._agenda.now_s > lane.cut_s + _NOTICED_S * self._chance(lane, 0):
            return False
        hear = self._hearing[origin]
        if isinstance(message, Outputs):
            for output in message.outputs:
                if isinstance(output.event, Ended):
                    self.ended_s[origin, output.serial] = self._agenda.now_s
        self._carry(origin, "down", message, lambda: hear(message))
        return True

    def close(self) -> None:
        pass

    def on_arrival(self, wake: Callable[[], None]) -> None:
        """wake: called when something has come for the engine."""
        self._wake = wake

    # ---- a worker's end

    def connect(self, origin: Origin, hear: Callable[[ToWorker], None]) -> None:
        self._hearing[origin] = hear
        for way in ("up", "down"):
            self._lanes[origin, way] = _Lane(len(self._lanes))

    def send_up(self, origin: Origin, message: ToEngine) -> None:
        self.num_up += 1
        self._carry(origin, "up", message, lambda: self._arrive(message))

    def say(self, message: ToEngine) -> None:
        """Somebody else than a worker says this: the supervisor."""
        self._arrive(message)

    # ---- what can go wrong

    def lose(self, origin: Origin, way: Way, count: int) -> None:
        """The next messages of this lane, other than heartbeats, do not arrive."""
        self._lanes[origin, way].num_to_lose += count

    def delay(self, origin: Origin, way: Way, seconds: float) -> None:
        """What is sent from now on arrives so much later."""
        lane = self._lanes[origin, way]
        lane.arrives_s = max(lane.arrives_s, self._agenda.now_s + seconds)

    def cut(self, origin: Origin, last_s: float) -> None:
        """This life is over. What it sent and would arrive within `last_s` still does."""
        self._lanes[origin, "up"].cut_s = self._agenda.now_s + last_s
        self._lanes[origin, "down"].cut_s = self._agenda.now_s

    def heal(self) -> None:
        """Nothing more goes wrong."""
        for lane in self._lanes.values():
            lane.num_to_lose = 0

    # ---- parts

    def _carry(
        self, origin: Origin, way: Way, message: ToEngine | ToWorker, arrive: Callable[[], None]
    ) -> None:
        lane = self._lanes[origin, way]
        now_s = self._agenda.now_s
        if lane.num_to_lose and not isinstance(message, Heartbeat):
            lane.num_to_lose -= 1
            self.losses.note(origin, message)
            return
        lane.num_sent += 1
        chance = self._chance(lane, lane.num_sent)
        takes_s = self._spread_s * (10 * chance if lane.num_sent % 16 == 0 else chance)
        lane.arrives_s = max(lane.arrives_s, now_s + takes_s)
        at_s = lane.arrives_s

        def come() -> None:
            if at_s < lane.cut_s:
                arrive()

        self._agenda.at(at_s, come)

    def _arrive(self, message: ToEngine) -> None:
        self._inbox.append(message)
        self._wake()

    def _chance(self, lane: _Lane, number: int) -> float:
        """In [0, 1); the same for this message of this lane, whatever the others do."""
        return zlib.crc32(b"%d %d %d" % (self._seed, lane.number, number)) / (1 << 32)
