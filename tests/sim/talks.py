"""What sessions should hold, said in the plainest way: whole histories, written out."""

from collections.abc import Callable
from dataclasses import dataclass, field

from tests.sim.desk import BOS_ID
from tests.sim.fake_runner import EOS_ID

from roost.core.events import Delta, Ended, Event, Started
from roost.core.outcome import Outcome
from roost.core.request import GenerateRequest, SessionTurn
from roost.sched import Addressed


def whole_prompt(
    new_ids: tuple[int, ...],
    wish: SessionTurn,
    prompt_ids: tuple[int, ...] = (),
    output_ids: tuple[int, ...] = (),
) -> tuple[int, ...]:
    """What a turn is asked, behind the prompt and the answer of its parent."""
    history = prompt_ids if wish.drops_output else prompt_ids + output_ids
    assert abs(wish.offset) <= len(history), "an offset that should have been refused"
    if wish.offset:
        history = history[: wish.offset]
    if not history:
        return new_ids
    if new_ids[0] == BOS_ID:
        new_ids = new_ids[1:]
    if new_ids[:1] == history[-1:] == (EOS_ID,):
        new_ids = new_ids[1:]
    return history + new_ids


@dataclass
class Said:
    """A turn as its client saw it."""

    asked: GenerateRequest
    prompt_ids: tuple[int, ...] = ()
    output_ids: tuple[int, ...] = ()

    @property
    def wish(self) -> SessionTurn:
        assert self.asked.turn is not None
        return self.asked.turn


@dataclass
class Talk:
    """One session: turns that ended well, in the order in which they did, and those alive."""

    done: dict[str, Said] = field(default_factory=dict)
    live: dict[str, Said] = field(default_factory=dict)
    is_closing: bool = False

    def keep(self, rid: str, said: Said) -> None:
        if said.wish.replaces:
            for other, its in list(self.done.items()):
                if its.wish.parent == said.wish.parent:
                    self._forget(other)
        self.done[rid] = said

    def _forget(self, rid: str) -> None:
        self.done.pop(rid, None)
        for other, its in list(self.done.items()):
            if its.wish.parent == rid:
                self._forget(other)


class Talks:
    """Follows what is asked and what is said, and objects to what should not be."""

    def __init__(self) -> None:
        self.open: dict[str, Talk] = {}

    def ask(self, asked: GenerateRequest) -> None:
        """A turn was submitted. Its session need not exist."""
        assert asked.turn is not None
        talk = self.open.get(asked.turn.session_id)
        if talk is not None:
            talk.live[asked.envelope.rid] = Said(asked)

    def close(self, session_id: str) -> None:
        self.open[session_id].is_closing = True

    def hear(self, said: list[Addressed], session_of: Callable[[str], SessionTurn | None]) -> None:
        """In the order in which it was said."""
        for envelope, event in said:
            wish = session_of(envelope.rid)
            if wish is not None:
                self._hear(envelope.rid, wish, event)
        for session_id in [name for name, talk in self.open.items() if talk.is_closing]:
            if not self.open[session_id].live:
                del self.open[session_id]

    def _hear(self, rid: str, wish: SessionTurn, event: Event) -> None:
        talk = self.open.get(wish.session_id)
        if talk is None:
            assert isinstance(event, Ended), "a turn lives in no session"
            if event.outcome is Outcome.INVALID_REQUEST and event.code == "invalid_request":
                assert event.message.endswith(" does not exist") or "must hold" in event.message
            return
        turn = talk.live[rid]
        parent = talk.done.get(str(wish.parent))
        match event:
            case Started(prompt_ids=prompt_ids):
                assert wish.parent is None or parent is not None, "it went on from nothing"
                before = () if parent is None else (parent.prompt_ids, parent.output_ids)
                assert prompt_ids == whole_prompt(turn.asked.prompt_ids, wish, *before)
                turn.prompt_ids = prompt_ids
            case Delta(first=first, token_ids=token_ids):
                assert first == len(turn.output_ids)
                turn.output_ids += token_ids
            case Ended(outcome=outcome, message=message):
                del talk.live[rid]
                if outcome in (Outcome.STOP, Outcome.LENGTH):
                    talk.keep(rid, turn)
                if message == "Invalid request session id":
                    assert parent is None, "its parent had ended well"
                if message.startswith("Replaced by turn "):
                    assert message.removeprefix("Replaced by turn ") in talk.done
                if "close was requested" in message:
                    assert talk.is_closing
