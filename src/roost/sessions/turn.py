"""One turn: its own tokens, and how much it keeps of those before it."""

from array import array
from typing import NamedTuple

from roost.cache import Pin
from roost.core.request import RequestId, SessionTurn
from roost.sessions.tables import TURN_MOVES, TurnMove, TurnState


class Settled(NamedTuple):
    """What the end of a turn, or of a session, means for other turns that were alive.

    ready: what they go on from has ended well, so that their prompt is known now. dropped: they
    have ended too, and whoever asked for them has to hear it.
    """

    ready: "list[Turn]"
    dropped: "list[Turn]"


class Turn:
    """A place in a session, on lease: whoever was given it has it committed or dropped, once.

    Its whole prompt and answer are the first `num_kept` tokens of its parent's, and then `own`:
    first its new ids, then, once it is done, its answer.

    pin: of what it computed, from when it is done until it is gone. num_cached: prompt tokens
    that the cache held when it began to run.
    """

    __slots__ = (
        "children",
        "num_cached",
        "num_kept",
        "num_new",
        "own",
        "parent",
        "pin",
        "rid",
        "state",
        "wish",
    )

    def __init__(
        self,
        rid: RequestId,
        wish: SessionTurn,
        parent: "Turn | None",
        new_ids: tuple[int, ...],
    ) -> None:
        self.rid = rid
        self.wish = wish
        self.parent = parent
        self.children: list[Turn] = []
        self.state = TurnState.HELD
        self.own = array("i", new_ids)
        self.num_new = len(new_ids)
        self.num_kept = 0
        self.num_cached = 0
        self.pin: Pin | None = None

    def move(self, how: TurnMove) -> None:
        state = TURN_MOVES[self.state].get(how)
        assert state is not None, f"{how} of turn {self.rid}, which is {self.state}"
        self.state = state

    def start(self, num_cached: int = 0) -> None:
        """It begins to run. Again, after a retraction: no harm."""
        if self.state is not TurnState.RUNNING:
            self.move(TurnMove.START)
            self.num_cached = num_cached

    def let_go(self) -> None:
        """Nobody will go on from it."""
        if self.pin is not None:
            self.pin.free()
            self.pin = None

    @property
    def is_live(self) -> bool:
        return self.state not in (TurnState.DONE, TurnState.GONE)

    @property
    def is_held(self) -> bool:
        return self.state is TurnState.HELD

    @property
    def knows_history(self) -> bool:
        """What it goes on from has ended well, or there is nothing that it goes on from."""
        return self.parent is None or self.parent.state is TurnState.DONE

    @property
    def num_prompt_tokens(self) -> int:
        """Of the whole prompt; while it is held, of the new ids."""
        return self.num_kept + self.num_new

    @property
    def num_output_tokens(self) -> int:
        """0 before it is done."""
        return len(self.own) - self.num_new

    @property
    def num_tokens(self) -> int:
        """Whole prompt and answer."""
        return self.num_kept + len(self.own)

    def first_tokens(self, stop: int) -> "array[int]":
        """The first `stop` tokens of the whole prompt and answer."""
        assert 0 <= stop <= self.num_tokens, f"{stop} of {self.num_tokens} tokens"
        pieces: list[array[int]] = []
        turn: Turn | None = self
        while turn is not None and stop > 0:
            if stop > turn.num_kept:
                pieces.append(turn.own[: stop - turn.num_kept])
                stop = turn.num_kept
            turn = turn.parent
        tokens = array("i")
        for piece in reversed(pieces):
            tokens.extend(piece)
        return tokens

    def family(self) -> "list[Turn]":
        """It and all that follows from it, each before its children, the oldest first."""
        found: list[Turn] = []
        ahead = [self]
        while ahead:
            turn = ahead.pop()
            found.append(turn)
            ahead.extend(reversed(turn.children))
        return found
