"""What a plan becomes for the program, to the number."""

from array import array

import msgspec
import numpy as np
import pytest
from tests.sim.requests import sampling

from roost.core.params import Sampling
from roost.core.plan import BatchPlan, Slice
from roost.core.request import NO_LOGPROBS, LogprobsWanted, RequestId
from roost.runner.inputs import InputMaker
from roost.runner.sampler import row_sampling

NUM_PROMPT = 20


def part(
    rid: str,
    tokens: list[int],
    start: int,
    stop: int,
    *,
    pages: tuple[int, ...] = (0, 1),
    asked: Sampling | None = None,
    logprobs: LogprobsWanted = NO_LOGPROBS,
    prompt_logprobs: tuple[int, int] = (0, 0),
    drafts: tuple[int, ...] = (),
) -> Slice:
    return Slice(
        request_id=RequestId(rid),
        tokens=array("i", tokens),
        num_prompt_tokens=min(NUM_PROMPT, len(tokens)),
        start=start,
        stop=stop,
        pages=pages,
        samples=stop == len(tokens),
        sampling=asked or sampling(),
        logprobs=logprobs,
        prompt_logprobs=prompt_logprobs,
        drafts=drafts,
    )


def test_a_ragged_step_lies_end_to_end() -> None:
    plan = BatchPlan(
        1,
        (
            part("a", list(range(100, 121)), 20, 21, pages=(7, 3)),
            part("b", list(range(200, 220)), 4, 7, pages=(5, 6)),
            part("c", list(range(50, 53)), 0, 3, pages=(9,)),
        ),
    )
    made = InputMaker().make(plan)
    assert made.token_ids.tolist() == [120, 204, 205, 206, 50, 51, 52]
    assert made.positions.tolist() == [20, 4, 5, 6, 0, 1, 2]
    assert made.slice_offsets.tolist() == [0, 1, 4, 7]
    assert made.pages.tolist() == [7, 3, 5, 6, 9]
    assert made.page_offsets.tolist() == [0, 2, 4, 5]
    assert [(head.row, head.position) for head in made.heads] == [(0, 21), (6, 3)]
    arrays = (made.token_ids, made.positions, made.slice_offsets, made.pages, made.page_offsets)
    assert {found.dtype for found in arrays} == {np.dtype(np.int32)}


def test_a_step_without_logits_has_no_heads() -> None:
    made = InputMaker().make(BatchPlan(1, (part("a", list(range(20)), 0, 8),)))
    assert made.heads == []


def test_a_sequence_may_grow_while_its_arrays_are_in_use() -> None:
    one = part("a", list(range(21)), 20, 21)
    made = InputMaker().make(BatchPlan(1, (one,)))
    one.tokens.append(5)
    assert made.token_ids.tolist() == [20]


def test_scored_prompt_rows_come_before_the_sampled_one() -> None:
    wanted = LogprobsWanted(chosen=True, prompt_from=0, top=3, token_ids=(4, 2))
    tokens = list(range(30, 40))
    one = part("a", tokens, 6, 10, logprobs=wanted, prompt_logprobs=(6, 9))
    heads = InputMaker().make(BatchPlan(1, (one,))).heads
    assert [head.row for head in heads] == [0, 1, 2, 3]
    assert [head.target_id for head in heads] == [37, 38, 39, -1]
    assert [head.sampling is None for head in heads] == [True, True, True, False]
    assert {head.num_top for head in heads} == {3}
    assert all(head.picked_ids is not None for head in heads)
    assert heads[3].picked_ids is not None
    assert heads[3].picked_ids.tolist() == [4, 2]


def test_only_the_prompt_is_scored_when_only_that_is_wanted() -> None:
    wanted = LogprobsWanted(prompt_from=0, top=3, token_ids=(4,))
    one = part("a", list(range(5)), 0, 5, logprobs=wanted, prompt_logprobs=(0, 4))
    last = InputMaker().make(BatchPlan(1, (one,))).heads[-1]
    assert (last.wants_logprob, last.num_top, last.picked_ids) == (False, 0, None)


def test_stop_ids_are_banned_before_min_new_tokens() -> None:
    asked = sampling(8, min_new_tokens=2, stop_ids=(3, 9))
    tokens = list(range(23))

    def banned(num_tokens: int, drafts: tuple[int, ...] = ()) -> list[list[int] | None]:
        one = part("a", tokens[:num_tokens], num_tokens - 1, num_tokens, asked=asked, drafts=drafts)
        heads = InputMaker().make(BatchPlan(1, (one,))).heads
        return [None if h.banned_ids is None else h.banned_ids.tolist() for h in heads]

    assert banned(21) == [[3, 9]]
    assert banned(22) == [None]
    assert banned(20, drafts=(7, 7, 7)) == [[3, 9], [3, 9], None, None]


def test_drafts_are_rows_behind_the_last_token() -> None:
    plan = BatchPlan(
        1,
        (
            part("a", list(range(100, 121)), 20, 21, drafts=(5, 6)),
            part("b", list(range(200, 221)), 20, 21, asked=with_penalty(), drafts=(8, 9)),
        ),
    )
    made = InputMaker().make(plan)
    assert made.token_ids.tolist() == [120, 5, 6, 220, 8, 9]
    assert made.positions.tolist() == [20, 21, 22, 20, 21, 22]
    assert made.slice_offsets.tolist() == [0, 3, 6]
    assert [(head.row, head.position) for head in made.heads] == [
        (0, 21),
        (1, 22),
        (2, 23),
        (3, 21),
        (4, 22),
        (5, 23),
    ]
    assert [h.generated_ids is None for h in made.heads] == [True] * 3 + [False] * 3
    histories = [h.generated_ids.tolist() for h in made.heads if h.generated_ids is not None]
    assert histories == [[220], [220, 8], [220, 8, 9]]


def changed(**fields: object) -> Sampling:
    return msgspec.structs.replace(sampling(), **fields)


def with_penalty() -> Sampling:
    return changed(repetition_penalty=1.5, logit_bias=((7, -2.5),))


@pytest.mark.parametrize(
    ("temperature", "used"), [(0.0, 0.0), (1e-300, 0.0), (1e-5, 1e-5), (0.7, 0.7), (1e300, 1e6)]
)
def test_a_temperature_is_one_that_f32_can_divide_by(temperature: float, used: float) -> None:
    assert row_sampling(changed(temperature=temperature)).temperature == used


@pytest.mark.parametrize(("penalty", "used"), [(1e-300, 1e-6), (0.5, 0.5), (2.0, 2.0)])
def test_a_repetition_penalty_is_one_that_f32_can_divide_by(penalty: float, used: float) -> None:
    assert row_sampling(changed(repetition_penalty=penalty)).repetition_penalty == used


def test_a_bias_is_one_that_f32_can_add() -> None:
    bias = row_sampling(changed(logit_bias=((1, 1e300), (2, -1e300), (3, 0.5))))
    assert bias.bias_ids.tolist() == [1, 2, 3]
    assert bias.bias_values.tolist() == [1e6, -1e6, 0.5]
    assert bias.bias_values.dtype == np.float32


def test_histories_are_given_only_with_penalties() -> None:
    tokens = list(range(23))
    plan = BatchPlan(
        1,
        (
            part("a", tokens, 22, 23, asked=with_penalty()),
            part("b", tokens, 22, 23),
            part("c", tokens[:20], 19, 20, asked=with_penalty()),
        ),
    )
    a, b, c = InputMaker().make(plan).heads
    assert a.prompt_ids is not None
    assert a.generated_ids is not None
    assert a.prompt_ids.tolist() == tokens[:20]
    assert a.generated_ids.tolist() == [20, 21, 22]
    assert (b.prompt_ids, b.generated_ids) == (None, None)
    assert c.generated_ids is not None
    assert c.generated_ids.tolist() == []
    assert a.sampling is not None
    assert (a.sampling.bias_ids.tolist(), a.sampling.bias_values.tolist()) == ([7], [-2.5])


def test_what_stays_the_same_is_made_once() -> None:
    maker = InputMaker()
    asked, pages = sampling(), (4, 5)
    tokens = list(range(22))
    first = maker.make(BatchPlan(1, (part("a", tokens[:21], 20, 21, asked=asked, pages=pages),)))
    second = maker.make(BatchPlan(2, (part("a", tokens, 21, 22, asked=asked, pages=pages),)))
    assert first.heads[0].sampling is second.heads[0].sampling
    third = maker.make(BatchPlan(3, (part("a", tokens, 21, 22, asked=asked, pages=(4, 5, 8)),)))
    assert third.pages.tolist() == [4, 5, 8]


def test_another_request_with_the_same_rid_is_another() -> None:
    maker = InputMaker()
    tokens = list(range(21))
    maker.make(BatchPlan(1, (part("a", tokens, 20, 21, asked=sampling(seed=1)),)))
    heads = maker.make(BatchPlan(2, (part("a", tokens, 20, 21, asked=sampling(seed=2)),))).heads
    assert heads[0].sampling is not None
    assert heads[0].sampling.seed == 2


def test_a_request_that_is_not_in_the_step_is_forgotten() -> None:
    maker = InputMaker()
    tokens = list(range(21))
    maker.make(BatchPlan(1, (part("a", tokens, 20, 21), part("b", tokens, 20, 21))))
    maker.make(BatchPlan(2, (part("b", tokens, 20, 21),)))
    assert list(maker._known) == ["b"]
