"""What this process knows of the engine: its facts, its load, and when it was heard last."""

from dataclasses import dataclass, field

from roost.wire.messages import Heartbeat, Load, ModelFacts, Welcome


@dataclass(slots=True)
class EngineView:
    """Nothing is known until the first Welcome. `is_lost`: somebody saw the engine die."""

    facts: ModelFacts | None = None
    epoch: int | None = None
    load: Load = field(default_factory=Load)
    heard_s: float = float("-inf")
    is_lost: bool = False

    def welcome(self, welcome: Welcome, now_s: float) -> bool:
        """Take the engine's greeting. True: it is another life than the one known so far."""
        is_another = self.epoch is not None and self.epoch != welcome.engine_epoch
        self.epoch, self.facts = welcome.engine_epoch, welcome.facts
        self.heard_s = max(self.heard_s, now_s)
        self.is_lost = False
        return is_another

    def beat(self, beat: Heartbeat) -> None:
        """Take a heartbeat. It counts from when it was sent: one that lay unread is no news."""
        self.heard_s = max(self.heard_s, beat.at_s)
        self.load = beat.load

    def silence_s(self, now_s: float) -> float:
        """For how long nothing was heard."""
        return now_s - self.heard_s

    def is_alive(self, now_s: float, timeout_s: float) -> bool:
        return not self.is_lost and self.silence_s(now_s) < timeout_s
