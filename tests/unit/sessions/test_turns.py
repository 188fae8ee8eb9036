"""What a turn's whole prompt is, and what its end means for the others."""

from array import array

import pytest

from roost.core.calls import OpenSession
from roost.core.errors import DuplicateRequest, RequestError
from roost.core.outcome import Outcome
from roost.core.request import RequestId, SessionTurn
from roost.sessions import (
    MAX_TURNS,
    TURN_MOVES,
    Rules,
    SessionStore,
    Settled,
    Turn,
    TurnState,
    is_kept,
)
from roost.sessions.tables import TurnMove

BOS, EOS, END_OF_TURN = 1, 2, 3
RULES = Rules(bos_id=BOS, eos_ids=frozenset({EOS, END_OF_TURN}), num_chars=lambda token_id: 3)


class Talk:
    """One session "s", and its turns by rid."""

    def __init__(self, rules: Rules = RULES, *, capacity_chars: int = 0) -> None:
        self.store = SessionStore(rules, max_sessions=4, timeout_s=10.0)
        self.store.open(OpenSession("s", capacity_chars), 0.0)
        self.turns: dict[str, Turn] = {}

    def begin(
        self,
        rid: str,
        new_ids: tuple[int, ...] = (50,),
        *,
        parent: str | None = None,
        offset: int = 0,
        drops_output: bool = False,
        replaces: bool = False,
    ) -> Turn:
        after = None if parent is None else RequestId(parent)
        wish = SessionTurn("s", after, offset, drops_output, replaces)
        self.turns[rid] = self.store.begin(RequestId(rid), wish, new_ids)
        return self.turns[rid]

    def prepare(self, rid: str) -> tuple[int, ...]:
        return self.store.prepare(self.turns[rid])

    def commit(self, rid: str, output_ids: tuple[int, ...] = (60,), now_s: float = 0.0) -> Settled:
        self.turns[rid].start()
        return self.store.commit(self.turns[rid], array("i", output_ids), now_s)

    def drop(self, rid: str, now_s: float = 0.0) -> Settled:
        settled = self.store.drop(self.turns[rid], now_s)
        self.store.check()
        return settled

    def turn(
        self,
        rid: str,
        new_ids: tuple[int, ...] = (50,),
        output_ids: tuple[int, ...] = (60,),
        *,
        parent: str | None = None,
        offset: int = 0,
        drops_output: bool = False,
        replaces: bool = False,
    ) -> tuple[int, ...]:
        """A whole turn → its whole prompt."""
        self.begin(
            rid,
            new_ids,
            parent=parent,
            offset=offset,
            drops_output=drops_output,
            replaces=replaces,
        )
        prompt_ids = self.prepare(rid)
        self.store.check()
        self.commit(rid, output_ids)
        self.store.check()
        return prompt_ids

    @property
    def tree(self) -> list[tuple[str, str]]:
        (view,) = self.store.listing(0.0)
        return [(turn.rid, turn.state.value) for turn in view.turns]


def rids(turns: list[Turn]) -> list[str]:
    return [turn.rid for turn in turns]


# ---- the whole prompt


def test_a_turn_goes_on_from_all_that_was_said() -> None:
    talk = Talk()
    assert talk.turn("a", (BOS, 10, 11), (20, 21)) == (BOS, 10, 11)
    assert talk.turn("b", (12,), (22,), parent="a") == (BOS, 10, 11, 20, 21, 12)
    assert talk.turn("c", (13,), (), parent="b") == (BOS, 10, 11, 20, 21, 12, 22, 13)
    # From an older turn: a branch beside the other.
    assert talk.turn("d", (14,), parent="a") == (BOS, 10, 11, 20, 21, 14)
    assert talk.turn("e", (BOS, 15)) == (BOS, 15)
    assert talk.tree == [(rid, "done") for rid in "abcde"]


@pytest.mark.parametrize(
    ("offset", "kept"),
    [
        (0, (10, 11, 20, 21)),
        (1, (10,)),
        (3, (10, 11, 20)),
        (4, (10, 11, 20, 21)),
        (-1, (10, 11, 20)),
        (-3, (10,)),
        (-4, ()),
    ],
)
def test_an_offset_cuts_the_history_like_a_slice(offset: int, kept: tuple[int, ...]) -> None:
    talk = Talk()
    talk.turn("a", (10, 11), (20, 21))
    assert talk.turn("b", (30,), (40,), parent="a", offset=offset) == (*kept, 30)
    assert talk.turn("c", (50,), parent="b") == (*kept, 30, 40, 50)


@pytest.mark.parametrize(
    ("offset", "kept"), [(0, (10, 11)), (1, (10,)), (2, (10, 11)), (-1, (10,)), (-2, ())]
)
def test_an_answer_that_is_left_out_is_left_out_before_the_offset_counts(
    offset: int, kept: tuple[int, ...]
) -> None:
    talk = Talk()
    talk.turn("a", (10, 11), (20, 21))
    prompt_ids = talk.turn("b", (30,), parent="a", offset=offset, drops_output=True)
    assert prompt_ids == (*kept, 30)


def test_an_offset_into_what_the_parent_keeps_of_its_own_parent() -> None:
    talk = Talk()
    talk.turn("a", (10, 11, 12), (20, 21))
    talk.turn("b", (30, 31), (40,), parent="a", offset=4)  # 10 11 12 20 · 30 31 · 40
    assert talk.turn("c", (50,), parent="b", offset=2) == (10, 11, 50)
    assert talk.turn("d", (50,), parent="b", offset=5) == (10, 11, 12, 20, 30, 50)
    assert talk.turn("e", (60,), parent="c", offset=-1) == (10, 11, 50, 60)


@pytest.mark.parametrize(
    ("offset", "drops_output", "length"), [(5, False, 4), (-5, False, 4), (3, True, 2)]
)
def test_an_offset_beyond_the_history_is_refused_with_both_numbers(
    offset: int, drops_output: bool, length: int
) -> None:
    talk = Talk()
    talk.turn("a", (10, 11), (20, 21))
    talk.begin("b", parent="a", offset=offset, drops_output=drops_output)
    with pytest.raises(RequestError) as caught:
        talk.prepare("b")
    assert caught.value.message == f"offset is {offset}, and the turn goes on from {length} tokens."
    talk.drop("b")
    assert talk.tree == [("a", "done")]


def test_a_root_has_no_history_to_cut() -> None:
    talk = Talk()
    talk.begin("a", offset=1)
    with pytest.raises(RequestError, match="offset is 1, and the turn goes on from 0 tokens"):
        talk.prepare("a")


@pytest.mark.parametrize(
    ("new_ids", "offset", "prompt_ids"),
    [
        ((BOS, 30), 0, (BOS, 10, 20, 30)),
        ((BOS, BOS, 30), 0, (BOS, 10, 20, BOS, 30)),
        ((BOS,), 0, (BOS, 10, 20)),
        ((30, BOS), 0, (BOS, 10, 20, 30, BOS)),
        # Nothing is kept, so that it is the first again.
        ((BOS, 30), -3, (BOS, 30)),
    ],
)
def test_there_is_one_bos(
    new_ids: tuple[int, ...], offset: int, prompt_ids: tuple[int, ...]
) -> None:
    talk = Talk()
    talk.turn("a", (BOS, 10), (20,))
    assert talk.turn("b", new_ids, parent="a", offset=offset) == prompt_ids


def test_a_tokenizer_without_a_bos_keeps_what_begins_a_message() -> None:
    talk = Talk(Rules(bos_id=None, eos_ids=frozenset({EOS}), num_chars=len_of))
    talk.turn("a", (BOS, 10), (20, EOS))
    assert talk.turn("b", (BOS, 30), parent="a") == (BOS, 10, 20, EOS, BOS, 30)


def len_of(token_id: int) -> int:
    return token_id


@pytest.mark.parametrize(
    ("output_ids", "new_ids", "added"),
    [
        # The answer ended with its end of turn, and a chat goes on behind it.
        ((20, END_OF_TURN), (END_OF_TURN, 9, 30), (9, 30)),
        # It was cut off by its length: the end of turn comes from the new ids.
        ((20,), (END_OF_TURN, 9, 30), (END_OF_TURN, 9, 30)),
        # Another end is another token.
        ((20, EOS), (END_OF_TURN, 9), (END_OF_TURN, 9)),
        ((20, 9), (9, 30), (9, 30)),
        ((20, END_OF_TURN), (BOS, END_OF_TURN, 30), (30,)),
        ((20, END_OF_TURN), (END_OF_TURN, END_OF_TURN), (END_OF_TURN,)),
        ((20, END_OF_TURN), (END_OF_TURN,), ()),
    ],
)
def test_an_end_of_turn_is_not_doubled(
    output_ids: tuple[int, ...], new_ids: tuple[int, ...], added: tuple[int, ...]
) -> None:
    talk = Talk()
    talk.turn("a", (10,), output_ids)
    assert talk.turn("b", new_ids, (40,), parent="a") == (10, *output_ids, *added)
    assert talk.turn("c", (50,), parent="b") == (10, *output_ids, *added, 40, 50)


def test_a_session_takes_so_many_characters() -> None:
    talk = Talk(capacity_chars=12)
    assert talk.turn("a", (10, 11), (20,)) == (10, 11)
    assert talk.turn("b", (12,), parent="a") == (10, 11, 20, 12)
    talk.begin("c", (12, 13), parent="a")
    with pytest.raises(RequestError) as caught:
        talk.prepare("c")
    assert caught.value.message == "The prompt has 15 characters; session s takes at most 12."
    talk.drop("c")
    assert talk.turn("c", (12, 13), parent="a", offset=2) == (10, 11, 12, 13)


# ---- who waits for whom


def test_a_turn_is_held_until_what_it_goes_on_from_has_ended() -> None:
    talk = Talk()
    talk.begin("a", (10,))
    talk.prepare("a")
    held = talk.begin("b", (11,), parent="a")
    talk.begin("c", (12,), parent="b")
    assert held.is_held
    assert not held.knows_history
    assert talk.tree == [("a", "waiting"), ("b", "held"), ("c", "held")]
    settled = talk.commit("a", (20,))
    assert (rids(settled.ready), settled.dropped) == (["b"], [])
    assert talk.prepare("b") == (10, 20, 11)
    talk.turns["b"].start()
    talk.store.check()
    assert talk.tree == [("a", "done"), ("b", "running"), ("c", "held")]


def test_several_may_wait_for_one_in_order_of_arrival() -> None:
    talk = Talk()
    talk.begin("a")
    talk.prepare("a")
    for rid in "bcd":
        talk.begin(rid, parent="a")
    assert rids(talk.commit("a").ready) == ["b", "c", "d"]


def test_what_was_held_for_a_dropped_turn_is_dropped() -> None:
    talk = Talk()
    talk.turn("a")
    talk.begin("b", parent="a")
    talk.prepare("b")
    for rid, parent in [("c", "b"), ("d", "c"), ("e", "b"), ("f", "a")]:
        talk.begin(rid, parent=parent)
    talk.prepare("f")
    settled = talk.drop("b")
    assert (settled.ready, rids(settled.dropped)) == ([], ["c", "d", "e"])
    assert [talk.turns[rid].state for rid in "bcde"] == [TurnState.GONE] * 4
    assert talk.tree == [("a", "done"), ("f", "waiting")]
    # Once more: nothing.
    assert talk.drop("b") == Settled([], [])
    assert talk.drop("d") == Settled([], [])


def test_a_dropped_turn_leaves_the_session_as_it_was() -> None:
    talk = Talk()
    talk.turn("a", (10,), (20,))
    before = talk.store.listing(5.0)
    talk.begin("b", (11,), parent="a", replaces=True)
    talk.prepare("b")
    talk.turns["b"].start()
    talk.drop("b", 0.0)
    assert talk.store.listing(5.0) == before
    assert talk.turn("b", (12,), parent="a") == (10, 20, 12)


def test_a_server_may_refuse_to_hold() -> None:
    talk = Talk(Rules(BOS, frozenset(), len_of, busy="refuse"))
    talk.begin("a")
    with pytest.raises(RequestError) as caught:
        talk.begin("b", parent="a")
    assert caught.value.message == "Invalid request: turn a of session s has not ended yet."
    talk.prepare("a")
    talk.commit("a")
    assert talk.turn("b", parent="a") == (50, 60, 50)


# ---- replacing


def test_replacing_takes_the_place_of_the_other_children() -> None:
    talk = Talk()
    talk.turn("a", (10,), (20,))
    talk.turn("b", parent="a")
    talk.turn("c", parent="b")
    talk.turn("other")
    talk.begin("d", parent="a")
    talk.prepare("d")
    talk.begin("e", parent="d")
    talk.begin("x", (11,), parent="a", replaces=True)
    assert talk.prepare("x") == (10, 20, 11)
    talk.begin("y", parent="x")
    # Nothing has happened so far.
    assert [rid for rid, _ in talk.tree] == ["a", "b", "c", "d", "e", "x", "y", "other"]
    settled = talk.commit("x")
    assert (rids(settled.ready), rids(settled.dropped)) == (["y"], ["d", "e"])
    assert [rid for rid, _ in talk.tree] == ["a", "x", "y", "other"]
    # The place of a dropped one can be taken again, under its old rid too.
    talk.prepare("y")
    assert talk.turn("b", (12,), parent="a") == (10, 20, 12)


def test_replacing_without_a_parent_clears_the_session() -> None:
    talk = Talk()
    talk.turn("a")
    talk.turn("b", parent="a")
    talk.begin("c", parent="b")
    talk.prepare("c")
    talk.begin("x", replaces=True)
    talk.prepare("x")
    assert rids(talk.commit("x").dropped) == ["c"]
    assert talk.tree == [("x", "done")]


def test_of_two_that_replace_each_other_the_first_to_end_stays() -> None:
    talk = Talk()
    for rid in "xy":
        talk.begin(rid, replaces=True)
        talk.prepare(rid)
    assert rids(talk.commit("y").dropped) == ["x"]
    assert talk.tree == [("y", "done")]


# ---- refusals


def test_an_unknown_turn_is_refused() -> None:
    talk = Talk()
    talk.begin("a")
    talk.prepare("a")
    talk.drop("a")
    for parent in ("a", "nobody", ""):
        with pytest.raises(RequestError, match=r"^Invalid request session id$"):
            talk.begin("b", parent=parent)


def test_a_turn_does_not_go_on_from_itself() -> None:
    with pytest.raises(RequestError, match=r"^Invalid request session id$"):
        Talk().begin("a", parent="a")


def test_the_rid_of_a_turn_names_it_alone() -> None:
    talk = Talk()
    talk.turn("a")
    with pytest.raises(DuplicateRequest):
        talk.begin("a")
    # In another session it is another turn.
    talk.store.open(OpenSession("t"), 0.0)
    assert not talk.store.begin(RequestId("a"), SessionTurn("t"), (1,)).children


def test_a_session_has_so_many_turns() -> None:
    talk = Talk()
    for i in range(MAX_TURNS):
        talk.begin(f"r{i}")
        talk.prepare(f"r{i}")
    with pytest.raises(RequestError) as caught:
        talk.begin("more")
    assert caught.value.message == "Session s has 1024 turns, which is the most."
    talk.drop("r7")
    talk.begin("more")


def test_a_long_line_of_turns_needs_no_recursion() -> None:
    talk = Talk()
    talk.turn("r0", (5,), (6,))
    for i in range(1, MAX_TURNS):
        talk.begin(f"r{i}", (5,), parent=f"r{i - 1}")
        prompt_ids = talk.prepare(f"r{i}")
        talk.commit(f"r{i}", (6,))
    assert prompt_ids == (5, 6) * (MAX_TURNS - 1) + (5,)
    (view,) = talk.store.listing(0.0)
    # Each keeps its own tokens, and no copy of the history.
    assert view.num_tokens == 2 * MAX_TURNS


# ---- the tables


def test_the_endings_that_are_kept() -> None:
    kept = {outcome for outcome in Outcome if is_kept(outcome)}
    assert kept == {Outcome.STOP, Outcome.LENGTH, Outcome.TOOL_CALLS}


@pytest.mark.parametrize("state", TurnState)
@pytest.mark.parametrize("how", TurnMove)
def test_a_turn_moves_as_the_table_says_and_not_otherwise(state: TurnState, how: TurnMove) -> None:
    turn = Turn(RequestId("a"), SessionTurn("s"), None, (1,))
    turn.state = state
    if how in TURN_MOVES[state]:
        turn.move(how)
        assert turn.state is TURN_MOVES[state][how]
        return
    with pytest.raises(AssertionError, match=f"{how} of turn a, which is {state}"):
        turn.move(how)
    assert turn.state is state


def test_only_what_ran_can_become_history() -> None:
    assert [state for state in TurnState if TurnMove.COMMIT in TURN_MOVES[state]] == [
        TurnState.RUNNING
    ]
