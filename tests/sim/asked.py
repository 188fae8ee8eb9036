"""A request of a simulated house, and all that became of it."""

import math
from dataclasses import dataclass, field

from tests.sim import script

from roost.core.events import Ended, Event
from roost.core.lifecycle import State, advance
from roost.core.request import Envelope, GenerateRequest
from roost.frontend.ledger import Life


@dataclass(slots=True, eq=False)
class Asked:
    """One request, and all that became of it.

    seen: what the switchboard told its observers. heard: what its client was told.
    """

    envelope: Envelope
    request: GenerateRequest
    action: script.Ask | script.Probe
    seen: list[tuple[float, Event]] = field(default_factory=list)
    heard: list[Event] = field(default_factory=list)
    state: State = State.SENT
    life: Life | None = None
    is_refused: bool = False
    has_left: bool = False
    is_shut: bool = False
    num_live_most: int = 0

    @property
    def rid(self) -> str:
        return self.envelope.rid

    @property
    def is_bad(self) -> bool:
        """Nothing that a model could answer, or beside something such in one call."""
        return isinstance(self.action, script.Ask) and self.action.is_bad

    @property
    def ending(self) -> Ended | None:
        last = self.seen[-1][1] if self.seen else None
        return last if isinstance(last, Ended) else None

    @property
    def ended_s(self) -> float:
        return self.seen[-1][0] if self.ending else math.inf

    def see(self, event: Event, now_s: float) -> None:
        """Raises ProtocolViolation for what the table forbids."""
        self.state = advance(self.state, event)
        self.seen.append((now_s, event))

    def deliver(self, index: int, event: Event, now_s: float) -> None:
        """As its client's listener."""
        assert index == 0, f"{self.rid} hears what was for answer {index}"
        self.heard.append(event)
