"""A runner over a program that gives made-up numbers: results land at the right request."""

from array import array
from collections.abc import Sequence

import msgspec
import numpy as np
from tests.sim.requests import sampling

from roost.core.events import TokenLogprob
from roost.core.plan import BatchPlan, Slice
from roost.core.request import LogprobsWanted, RequestId
from roost.programs import StepInputs, StepOutputs
from roost.runner import Runner


class CountingProgram:
    """Head i of a step: token 10 + i (or its target), logprob −i, top (i, …), picked −100 − i."""

    def __init__(self, faults: tuple[int, ...] = ()) -> None:
        self.faults = faults
        self.is_closed = False
        self.copied: list[tuple[int, int]] = []
        self.done: list[str] = []

    def copy_pages(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        self.copied += zip(sources, targets, strict=True)
        self.done += [f"copy {a} {b}" for a, b in zip(sources, targets, strict=True)]

    def read_page(self, page: int) -> bytes:
        self.done.append(f"read {page}")
        return b"page"

    def write_page(self, page: int, data: bytes) -> None:
        self.done.append(f"write {page} {data!r}")

    def run(self, inputs: StepInputs) -> StepOutputs:
        self.done.append("run")
        heads = inputs.heads
        num_top = max((head.num_top for head in heads), default=0)
        picked = [0 if head.picked_ids is None else len(head.picked_ids) for head in heads]
        return StepOutputs(
            token_ids=np.array(
                [10 + i if h.sampling else h.target_id for i, h in enumerate(heads)], np.int32
            ),
            logprobs=np.array([-i for i in range(len(heads))], np.float32),
            top_ids=np.array(
                [[i + k for k in range(num_top)] for i in range(len(heads))], np.int32
            ),
            top_logprobs=np.array(
                [[-i - k for k in range(num_top)] for i in range(len(heads))], np.float32
            ),
            picked_logprobs=np.array(
                [-100 - i for i, n in enumerate(picked) for _ in range(n)], np.float32
            ),
            picked_offsets=np.cumsum([0, *picked]).astype(np.int32),
            faults=np.array([i in self.faults for i in range(len(heads))], np.bool_),
        )

    def close(self) -> None:
        self.is_closed = True


def plan_of_four() -> BatchPlan:
    def part(rid: str, samples: bool, logprobs: LogprobsWanted, scored: tuple[int, int]) -> Slice:
        tokens = array("i", range(40, 46))
        stop = 6 if samples else 5
        return Slice(
            RequestId(rid), tokens, 6, 0, stop, (0,), samples, sampling(), logprobs, scored
        )

    nothing = LogprobsWanted()
    return BatchPlan(
        9,
        (
            part("plain", True, nothing, (0, 0)),
            part("chunk", False, nothing, (0, 0)),
            part("scored", True, LogprobsWanted(True, 0, 2, (8,)), (3, 5)),
            part("piece", False, LogprobsWanted(False, 0), (1, 2)),
        ),
    )


def test_each_result_is_its_request_s() -> None:
    result = Runner(CountingProgram()).execute(plan_of_four())
    assert result.number == 9
    plain, chunk, scored, piece = result.results
    # heads: 0 plain · 1, 2 scored prompt rows · 3 its sampled row · 4 the piece's prompt row
    assert (plain.request_id, plain.token_ids, plain.logprobs) == ("plain", (10,), ())
    assert (chunk.request_id, chunk.token_ids, chunk.prompt_logprobs) == ("chunk", (), ())
    assert scored.token_ids == (13,)
    assert scored.logprobs == (TokenLogprob(13, -3.0, ((3, -3.0), (4, -4.0)), ((8, -103.0),)),)
    assert scored.prompt_logprobs == (
        TokenLogprob(44, -1.0, ((1, -1.0), (2, -2.0)), ((8, -101.0),)),
        TokenLogprob(45, -2.0, ((2, -2.0), (3, -3.0)), ((8, -102.0),)),
    )
    assert piece.token_ids == ()
    assert piece.prompt_logprobs == (TokenLogprob(42, -4.0),)
    assert not any(one.fault for one in result.results)


def test_a_fault_in_any_row_of_a_slice_is_that_request_s_alone() -> None:
    for row, rid in ((0, "plain"), (1, "scored"), (3, "scored"), (4, "piece")):
        result = Runner(CountingProgram(faults=(row,))).execute(plan_of_four())
        assert [one.request_id for one in result.results if one.fault] == [rid]
        assert all(one.token_ids == () for one in result.results if one.fault)


def drafted(rid: str, drafts: tuple[int, ...], logprobs: LogprobsWanted) -> Slice:
    tokens = array("i", range(40, 46))
    return Slice(RequestId(rid), tokens, 6, 5, 6, (0,), True, sampling(), logprobs, (0, 0), drafts)


def test_chosen_tokens_hold_as_long_as_the_drafts_before_them_were_right() -> None:
    nothing = LogprobsWanted()
    plan = BatchPlan(
        1,
        (
            drafted("wrong", (9, 11), nothing),  # heads 0, 1, 2
            drafted("one", (13, 9, 15), LogprobsWanted(True)),  # heads 3, 4, 5, 6
            drafted("all", (17,), nothing),  # heads 7, 8
            drafted("none", (), nothing),  # head 9
        ),
    )
    wrong, one, both, none = Runner(CountingProgram()).execute(plan).results
    assert wrong.token_ids == (10,)
    assert one.token_ids == (13, 14)
    assert one.logprobs == (TokenLogprob(13, -3.0), TokenLogprob(14, -4.0))
    assert both.token_ids == (17, 18)
    assert none.token_ids == (19,)


def test_a_fault_behind_a_draft_is_left_to_the_step_that_begins_with_it() -> None:
    def result(*faults: int) -> tuple[tuple[int, ...], bool]:
        plan = BatchPlan(1, (drafted("a", (10, 11, 9, 13), LogprobsWanted()),))
        (row,) = Runner(CountingProgram(faults)).execute(plan).results
        return row.token_ids, bool(row.fault)

    assert result() == ((10, 11, 12), False)
    assert result(0) == ((), True)
    assert result(1) == ((10,), False)
    assert result(2) == ((10, 11), False)
    # Behind a draft that was wrong.
    assert result(3, 4) == ((10, 11, 12), False)


def test_pages_are_copied_before_the_step() -> None:
    program = CountingProgram()
    plan = plan_of_four()
    Runner(program).execute(BatchPlan(plan.number, plan.slices, copies=((3, 5), (4, 3))))
    assert program.copied == [(3, 5), (4, 3)]


def test_closing_closes_the_program_and_what_is_below_it() -> None:
    program, below = CountingProgram(), CountingProgram()
    Runner(program, below).close()
    assert program.is_closed
    assert below.is_closed


class Drawer:
    """A shelf of pages that are numbers: digest b"7" is page b"7"."""

    def __init__(self, *digests: bytes) -> None:
        self.kept = list(digests)
        self.is_closed = False

    def wants(self, digest: bytes) -> bool:
        return digest not in self.kept

    def write(self, digest: bytes, page: bytes) -> None:
        self.kept.append(digest + page)

    def read(self, digest: bytes) -> bytes | None:
        return digest if digest in self.kept else None

    def close(self) -> None:
        self.is_closed = True


def test_pages_are_saved_then_copied_then_loaded_then_computed() -> None:
    program, drawer = CountingProgram(), Drawer(b"7")
    runner = Runner(program, shelf=drawer)
    plan = msgspec.structs.replace(
        plan_of_four(),
        copies=((3, 4),),
        saves=((5, b"5"), (6, b"7")),
        loads=((1, b"7"), (2, b"8")),
    )
    result = runner.execute(plan)
    assert program.done == ["read 5", "copy 3 4", "write 1 b'7'", "run"]
    assert drawer.kept == [b"7", b"5page"]
    assert result.unread == (2,)
    assert len(result.results) == 4
    runner.close()
    assert drawer.is_closed


def test_a_plan_may_only_load() -> None:
    program = CountingProgram()
    result = Runner(program, shelf=Drawer(b"7")).execute(BatchPlan(9, (), loads=((1, b"7"),)))
    assert program.done == ["write 1 b'7'"]
    assert (result.number, result.results, result.unread) == (9, (), ())
