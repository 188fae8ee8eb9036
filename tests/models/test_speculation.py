"""With speculation a request has the same bits on the real model, only sooner."""

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from tests.models.bits import Bench, Judge
from tests.sim.requests import request, sampling

from roost.core.outcome import Outcome
from roost.core.request import GenerateRequest, LogprobsWanted, RequestId

SCORED = LogprobsWanted(chosen=True, top=2, token_ids=(5, 2_003))
# A passage, and again its beginning: the model goes on with it.
PASSAGE = tuple(range(2_000, 2_024))
PROMPT = (*PASSAGE, *PASSAGE, *PASSAGE[:5])
SETTINGS: dict[str, object] = {"speculate": "ngram"}


@pytest.fixture(scope="module")
def judge(demo_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Judge]:
    found = Judge(demo_model, tmp_path_factory.mktemp("packed"))
    yield found
    found.close()


def asked(num_new: int = 24, prompt: tuple[int, ...] = PROMPT, **wishes: object) -> GenerateRequest:
    how = msgspec.structs.replace(sampling(num_new), **{"temperature": 0.0, **wishes})
    return request("asked", prompt, how, logprobs=SCORED)


WISHES = (
    asked(),
    asked(temperature=0.4, seed=3),
    asked(temperature=0.9, top_p=0.9, seed=4),
    asked(frequency_penalty=0.4, presence_penalty=0.3),
    asked(repetition_penalty=1.2),
    asked(logit_bias=((PASSAGE[9], -3.0), (PASSAGE[12], 2.0))),
    asked(stop_ids=(PASSAGE[10],)),
    asked(stop_ids=(PASSAGE[10],), min_new_tokens=12),
    asked(num_new=1),
    asked(num_new=2),
    asked(num_new=11),
)


def num_right(bench: Bench) -> int:
    return bench.loop._scheduler.load().num_right_drafts


@pytest.mark.parametrize("threads", [1, 2])
def test_one_at_a_time(judge: Judge, threads: int) -> None:
    bench = judge.bench({**SETTINGS, "threads": threads, "prefix_cache": "off"})
    for one in WISHES:
        judge.compare(one, bench.answer(one))
    assert num_right(bench) > 30
    assert bench.loop._scheduler.load().num_drafts > num_right(bench)
    bench.loop.close()


def test_what_was_answered_before_takes_few_steps(judge: Judge) -> None:
    bench = judge.bench(SETTINGS)
    drawn = asked(temperature=0.9, prompt=PASSAGE, seed=9)
    num_steps = []
    for _ in range(2):
        before = bench.loop._scheduler.load().num_steps
        judge.compare(drawn, bench.answer(drawn))
        num_steps.append(bench.loop._scheduler.load().num_steps - before)
    assert num_steps[1] < num_steps[0] / 2
    bench.loop.close()


@pytest.mark.parametrize(
    "settings",
    [{}, {"max_step_tokens": 24}, {"max_total_tokens": 288}, {"prefix_cache": "off"}],
    ids=str,
)
def test_together(judge: Judge, settings: dict[str, object]) -> None:
    bench = judge.bench({**SETTINGS, "max_running_requests": 4, **settings}, growth_tokens=0)
    for number, one in enumerate(WISHES):
        bench.ask(one, f"r{number}", number)
    bench.finish()
    judge.compare_all(bench)
    assert num_right(bench) > 10
    bench.loop.close()


def test_retracted_after_every_step(judge: Judge) -> None:
    bench = judge.bench(SETTINGS)
    for number, one in enumerate(WISHES[:4]):
        bench.ask(one, f"r{number}", number)
    while bench.step():
        bench.retract_all()
    judge.compare_all(bench)
    # Who has just come back decodes nothing yet, but for what is cached.
    assert bench.num_retractions > 4
    bench.loop.close()


def test_cancelled_with_drafts_in_flight(judge: Judge) -> None:
    bench = judge.bench(SETTINGS)
    bench.ask(WISHES[0], "gone", 1)
    bench.ask(WISHES[2], "stays", 2)
    while bench.loop._scheduler.load().num_drafts < 4:
        assert bench.step()
    bench.cancel(RequestId("gone"))
    bench.finish()
    judge.compare_all(bench)
    ended = bench.answers[RequestId("gone")].ended
    assert ended is not None
    assert ended.outcome is Outcome.CLIENT_CANCELLED
    bench.loop.close()
