"""One session: its tree of turns."""

from array import array
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal

from roost.cache import Pin
from roost.core.errors import DuplicateRequest, RequestError
from roost.core.request import RequestId, SessionTurn
from roost.sessions.tables import SESSION_MOVES, SessionMove, SessionState, TurnMove, TurnState
from roost.sessions.turn import Settled, Turn

# A turn keeps its own tokens, so this and the context bound what a session takes.
MAX_TURNS: Final = 1024


@dataclass(frozen=True, slots=True)
class Rules:
    """What the model and the server say about turns.

    bos_id: what prompts of this model begin with, if with anything; it stays the first token only.
    eos_ids: what ends an answer; a continuation may begin with the one that its history ends with.
    num_chars: token id → characters that it adds to the text. busy: what becomes of a turn that
    goes on from one which has not ended.
    """

    bos_id: int | None
    eos_ids: frozenset[int]
    num_chars: Callable[[int], int]
    busy: Literal["wait", "refuse"] = "wait"


class Session:
    """Turns by rid, the roots of their tree, and how many of them are alive.

    Children of a live turn are held, and those of a turn that is done are not. Nothing is ever kept
    below a turn that is gone.
    """

    def __init__(
        self, session_id: str, rules: Rules, *, capacity_chars: int, timeout_s: float, now_s: float
    ) -> None:
        self.session_id = session_id
        self.state = SessionState.OPEN
        self.roots: list[Turn] = []
        self.num_live = 0
        self._rules = rules
        self._capacity_chars = capacity_chars
        self._timeout_s = timeout_s
        self._idle_since_s = now_s
        self._turns: dict[RequestId, Turn] = {}

    # ---- verbs

    def begin(self, rid: RequestId, wish: SessionTurn, new_ids: tuple[int, ...]) -> Turn:
        """A new turn, held; ready to `prepare` unless its parent is alive.

        Raises RequestError: the session closes, the rid is one of its turns, the parent is none of
        them, or is alive and nobody waits here; or there are too many turns.
        """
        if self.state is not SessionState.OPEN:
            raise close_requested(self.session_id)
        if rid in self._turns:
            raise DuplicateRequest(rid)
        parent = None
        if wish.parent is not None:
            parent = self._turns.get(wish.parent)
            if parent is None:
                raise unknown_turn()
            if parent.is_live and self._rules.busy == "refuse":
                raise RequestError(
                    f"Invalid request: turn {parent.rid} of session {self.session_id} has not "
                    "ended yet.",
                    param="session_params",
                )
        if len(self._turns) >= MAX_TURNS:
            raise RequestError(
                f"Session {self.session_id} has {MAX_TURNS} turns, which is the most.",
                param="session_params",
            )
        turn = Turn(rid, wish, parent, new_ids)
        self._turns[rid] = turn
        self._siblings(turn).append(turn)
        self.num_live += 1
        return turn

    def prepare(self, turn: Turn) -> tuple[int, ...]:
        """What a held turn goes on from has ended well: it waits → its whole prompt.

        Raises RequestError for an offset that the history does not have, and for a prompt of more
        characters than the session takes; the turn is held as before, to be dropped.
        """
        parent = turn.parent
        assert turn.knows_history, f"turn {turn.rid} is prepared before its parent has ended"
        num_kept = _num_kept(turn)
        history = () if parent is None else tuple(parent.first_tokens(num_kept))
        new_ids = self._new_ids(turn, history)
        prompt_ids = (*history, *new_ids)
        self._check_capacity(prompt_ids)
        turn.move(TurnMove.READY)
        turn.num_kept = num_kept
        turn.own = array("i", new_ids)
        turn.num_new = len(new_ids)
        return prompt_ids

    def commit(
        self, turn: Turn, output_ids: "array[int]", now_s: float, pin: Pin | None = None
    ) -> Settled:
        """A turn that ran has ended well with these tokens, a stop token included. pin: of what it
        computed; its holder is the turn from now on.

        dropped: those that were alive among the turns that it replaces.
        """
        turn.move(TurnMove.COMMIT)
        turn.own.extend(output_ids)
        turn.pin = pin
        replaced: list[Turn] = []
        if turn.wish.replaces:
            for other in list(self._siblings(turn)):
                if other is not turn:
                    replaced += self._remove(other)
        self._rest(1 + len(replaced), now_s)
        return Settled([child for child in turn.children if child.is_held], replaced)

    def drop(self, turn: Turn, now_s: float) -> Settled:
        """A live turn has not come about: the session is as it was before it.

        dropped: those that were held for it.
        """
        dropped = self._remove(turn)
        self._rest(len(dropped), now_s)
        return Settled([], [other for other in dropped if other is not turn])

    def close(self, now_s: float) -> list[Turn]:
        """Take no more turns → those that had not begun to run, which are dropped.

        The session is over at once, or when the last of the others has ended. Again: no harm.
        """
        if self.state is not SessionState.OPEN:
            return []
        self.state = SESSION_MOVES[self.state][SessionMove.CLOSE]
        dropped: list[Turn] = []
        for turn in list(self._turns.values()):
            if turn.state in (TurnState.HELD, TurnState.WAITING):
                dropped += self._remove(turn)
        self._rest(len(dropped), now_s)
        return dropped

    def forget(self) -> None:
        """It is over. Only without a live turn."""
        assert self.num_live == 0, f"session {self.session_id} ends under a live turn"
        self.state = SESSION_MOVES[self.state][SessionMove.FORGET]
        for turn in self._turns.values():
            turn.let_go()
        self._turns.clear()
        self.roots.clear()

    # ---- questions

    @property
    def is_over(self) -> bool:
        """Nothing keeps it: it was closed, and its last turn has ended."""
        return self.state is SessionState.CLOSING and self.num_live == 0

    @property
    def expires_s(self) -> float | None:
        """When it will have been idle for too long, `inf` for never; None while a turn lives."""
        return None if self.num_live else self._idle_since_s + self._timeout_s

    def idle_s(self, now_s: float) -> float:
        return 0.0 if self.num_live else max(now_s - self._idle_since_s, 0.0)

    def turns(self) -> list[Turn]:
        """All turns, each before those that go on from it."""
        return [turn for root in self.roots for turn in root.family()]

    def check(self) -> None:
        """Assert that the tree is one. O(turns)."""
        turns = self.turns()
        assert len(turns) == len(self._turns), "a turn is not in its tree"
        assert sum(turn.is_live for turn in turns) == self.num_live, "live turns are miscounted"
        for turn in turns:
            name = f"turn {turn.rid} of {self.session_id}"
            assert self._turns.get(turn.rid) is turn, f"{name} is not on the list"
            assert turn.state is not TurnState.GONE, f"{name} is gone and kept"
            assert turn.num_new <= len(turn.own), f"{name} lacks tokens"
            if turn.parent is None:
                assert not turn.is_held, f"{name} is held for nothing"
                continue
            assert turn.parent.is_live == turn.is_held, f"{name} is {turn.state} at a wrong time"
            if not turn.is_held:
                assert turn.num_kept <= turn.parent.num_tokens, f"{name} keeps too much"
            assert turn.pin is None or turn.state is TurnState.DONE, f"{name} pins too soon"

    # ---- parts

    def _siblings(self, turn: Turn) -> list[Turn]:
        """The list that holds the turn."""
        return self.roots if turn.parent is None else turn.parent.children

    def _remove(self, turn: Turn) -> list[Turn]:
        """Take a turn and all that follows from it out of the tree → those that were alive.

        Nothing for one that is gone already, with one before it.
        """
        if turn.state is TurnState.GONE:
            return []
        family = turn.family()
        live = [one for one in family if one.is_live]
        self._siblings(turn).remove(turn)
        for one in family:
            del self._turns[one.rid]
            one.move(TurnMove.DROP)
            one.let_go()
        return live

    def _rest(self, num_ended: int, now_s: float) -> None:
        self.num_live -= num_ended
        if num_ended and self.num_live == 0:
            self._idle_since_s = now_s

    def _new_ids(self, turn: Turn, history: tuple[int, ...]) -> tuple[int, ...]:
        """What the turn adds, without what would stand there twice."""
        ids = tuple(turn.own)
        if history and ids[:1] == (self._rules.bos_id,):
            ids = ids[1:]
        if history and history[-1] in self._rules.eos_ids and ids[:1] == history[-1:]:
            ids = ids[1:]
        return ids

    def _check_capacity(self, prompt_ids: tuple[int, ...]) -> None:
        if not self._capacity_chars:
            return
        num_chars = sum(map(self._rules.num_chars, prompt_ids))
        if num_chars > self._capacity_chars:
            raise RequestError(
                f"The prompt has {num_chars} characters; session {self.session_id} takes at most "
                f"{self._capacity_chars}.",
                param="session_params",
            )


def unknown_session(session_id: str) -> RequestError:
    return RequestError(
        f"Invalid request: session id {session_id} does not exist", param="session_params"
    )


def unknown_turn() -> RequestError:
    """Nothing to go on from: it never was, or did not come about."""
    return RequestError("Invalid request session id", param="session_params")


def close_requested(session_id: str) -> RequestError:
    return RequestError(
        f"Invalid request: close was requested for session {session_id}", param="session_params"
    )


def _num_kept(turn: Turn) -> int:
    """How many tokens of the history the turn keeps. Raises RequestError for a bad offset."""
    parent, wish = turn.parent, turn.wish
    if parent is None:
        length = 0
    else:
        length = parent.num_prompt_tokens if wish.drops_output else parent.num_tokens
    if abs(wish.offset) > length:
        raise RequestError(
            f"offset is {wish.offset}, and the turn goes on from {length} tokens.",
            param="session_params",
        )
    return wish.offset if wish.offset > 0 else length + wish.offset
