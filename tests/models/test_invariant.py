"""The same request has the same bits on the real model: tokens, logprobs, logprobs of the prompt,
ending. Alone or in a batch, cold or from the cache, in chunks of any size, on one thread or two,
retracted or not.
"""

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from tests.models.bits import Judge, outcomes
from tests.models.traces import POOL_SIZE, play, pool_of, trace_of
from tests.sim.requests import request, sampling

from roost.core.outcome import Outcome
from roost.core.request import GenerateRequest, LogprobsWanted

PAGE = 16
PROMPT = tuple(range(2_000, 2_040))
SCORED = LogprobsWanted(chosen=True, top=2)


@pytest.fixture(scope="module")
def judge(demo_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Judge]:
    found = Judge(demo_model, tmp_path_factory.mktemp("packed"))
    yield found
    found.close()


@pytest.fixture(scope="module")
def pool() -> list[GenerateRequest]:
    return pool_of(0)


def greedy(
    prompt: tuple[int, ...], num_new: int = 3, wanted: LogprobsWanted = SCORED
) -> GenerateRequest:
    how = msgspec.structs.replace(sampling(num_new), temperature=0.0)
    return request("greedy", prompt, how, logprobs=wanted)


def filling(prompt: tuple[int, ...]) -> GenerateRequest:
    """Computes a prompt, and answers nothing."""
    return request("filling", prompt, sampling(0))


@pytest.mark.parametrize("threads", [1, 2])
def test_sixty_four_in_a_batch(judge: Judge, pool: list[GenerateRequest], threads: int) -> None:
    # All of them in a few steps, so that they are together for most of their answers.
    bench = judge.bench({"threads": threads, "max_total_tokens": 8192, "max_step_tokens": 2048})
    for number in range(1, 65):
        bench.ask(pool[number % POOL_SIZE], f"r{number}", number)
    most = 0
    while bench.step():
        most = max(most, bench.loop._scheduler.load().num_running)
    assert most >= 40, most
    # The second of each pair finds the first's beginning.
    assert bench.num_cached_tokens > 500
    assert judge.compare_all(bench) > 2_000
    bench.loop.close()
    assert outcomes(list(bench.answers.values())) == {Outcome.LENGTH, Outcome.STOP}


def test_every_length_of_a_beginning_that_is_known(judge: Judge) -> None:
    bench = judge.bench({})
    last = len(PROMPT) - 1
    for num_known in range(1, len(PROMPT) + 1):
        bench.flush()
        bench.answer(filling(PROMPT[:num_known]))
        answer = bench.answer(greedy(PROMPT))
        # The last token is computed, since its logits choose the next one.
        assert answer.num_cached_tokens == min(num_known, last)
        judge.compare(greedy(PROMPT), answer)
    bench.loop.close()


def test_every_place_at_which_another_prompt_parts(judge: Judge) -> None:
    bench = judge.bench({})
    for num_common in range(len(PROMPT)):
        bench.flush()
        other = (*PROMPT[:num_common], *range(3_000, 3_000 + PAGE))
        bench.answer(greedy(other))
        answer = bench.answer(greedy(PROMPT))
        assert answer.num_cached_tokens == min(num_common, len(PROMPT) - 1)
        judge.compare(greedy(PROMPT), answer)
        if num_common % 7 == 5:
            # What was there first is as it was: its page was copied, and not written to.
            judge.compare(greedy(other), bench.answer(greedy(other)))
    bench.loop.close()


def test_an_answer_that_goes_on_from_an_answer(judge: Judge) -> None:
    bench = judge.bench({})
    tokens: tuple[int, ...] = PROMPT
    for turn in range(6):
        asked = greedy(tokens, 7)
        answer = bench.answer(asked)
        judge.compare(asked, answer)
        if turn:
            # All of the last turn but its last token, which was never computed.
            assert answer.num_cached_tokens == len(tokens) - 3 - 1
        tokens = (*tokens, *answer.tokens, 2_500 + turn, 2_600, 2_700)
    bench.loop.close()


def test_logprobs_of_a_prompt_that_is_known(judge: Judge) -> None:
    bench = judge.bench({})
    bench.answer(filling(PROMPT))
    for first in (0, 1, 15, 16, 17, 30, 39):
        wanted = LogprobsWanted(chosen=True, prompt_from=first, top=1)
        asked = greedy(PROMPT, 2, wanted)
        answer = bench.answer(asked)
        assert len(answer.prompt_logprobs) == len(PROMPT) - first
        judge.compare(asked, answer)
    bench.loop.close()


@pytest.mark.parametrize("threads", [1, 2])
def test_chunks_of_any_size(judge: Judge, threads: int) -> None:
    asked = greedy(tuple(range(4_000, 4_070)), 2, LogprobsWanted(chosen=True, prompt_from=0, top=1))
    bench = judge.bench({"threads": threads, "prefix_cache": "off"})
    before = judge.num_compared
    sizes = (2, 3, 7, 15, 16, 17, 31, 33, 48, 69, 70)
    for size in sizes:
        bench.chunk(size)
        judge.compare(asked, bench.answer(asked))
    assert judge.num_compared - before == len(sizes) * 72
    bench.loop.close()


@pytest.mark.parametrize("prefix_cache", ["on", "off"])
def test_retracted_at_every_step(judge: Judge, prefix_cache: str) -> None:
    bench = judge.bench({"prefix_cache": prefix_cache, "max_step_tokens": 64})
    wanted = LogprobsWanted(chosen=True, prompt_from=0, top=1)
    for number in range(1, 5):
        how = msgspec.structs.replace(sampling(8, seed=number), frequency_penalty=0.5)
        asked = request("drawn", PROMPT[: 10 * number], how, logprobs=wanted)
        bench.ask(asked, f"r{number}", number)
    while bench.step():
        bench.retract_all()
    assert bench.num_retractions >= 4 * 7
    assert judge.compare_all(bench) == 4 * 8 + 10 + 20 + 30 + 40
    bench.loop.close()


def test_a_pool_for_two_under_sixteen(judge: Judge, pool: list[GenerateRequest]) -> None:
    bench = judge.bench({"max_total_tokens": 160, "max_step_tokens": 48}, growth_tokens=0)
    for number in range(1, 17):
        bench.ask(pool[number], f"r{number}", number)
    bench.finish()
    assert bench.num_retractions > 0
    assert judge.compare_all(bench) > 300
    bench.loop.close()


@pytest.mark.parametrize("seed", range(1, 6))
def test_whatever_goes_on(judge: Judge, pool: list[GenerateRequest], seed: int) -> None:
    bench = play(trace_of(seed, most_requests=24), pool, judge)
    assert len(bench.answers) >= 4
