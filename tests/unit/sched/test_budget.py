"""A long prompt is computed in steps that are short enough for those who are answering."""

import math

import pytest
from tests.sim.desk import Desk
from tests.sim.requests import request, sampling

from roost.core.plan import BatchPlan
from roost.sched.budget import FIRST_TOKENS, LEAST_TOKENS

MAX_STEP_S = 0.15


def desk_of(max_step_s: float) -> Desk:
    return Desk(
        num_pages=1200,
        max_context_tokens=9000,
        max_step_tokens=512,
        max_running=16,
        max_step_s=max_step_s,
    )


def prompt(first: int, num_tokens: int) -> tuple[int, ...]:
    return tuple((first + i * i + i // 7) % 24 for i in range(num_tokens))


def duration_s(plan: BatchPlan, token_s: float, attended_s: float, step_s: float) -> float:
    attended = sum((cut.start + cut.stop) / 2 * cut.num_tokens for cut in plan.slices)
    return step_s + token_s * plan.num_tokens + attended_s * attended


def run(desk: Desk, token_s: float, attended_s: float, step_s: float) -> list[tuple[int, float]]:
    """Until no prompt is left to compute → tokens and seconds of every step that had one."""
    steps: list[tuple[int, float]] = []
    while True:
        plan = desk.scheduler.plan(desk.now_s)
        assert plan is not None
        took_s = duration_s(plan, token_s, attended_s, step_s)
        desk.now_s += took_s
        desk.finish(plan)
        if all(cut.num_tokens == 1 for cut in plan.slices):
            return steps
        steps.append((plan.num_tokens, took_s))


def streams(desk: Desk, num_streams: int) -> None:
    for i in range(num_streams):
        desk.submit(request(f"s{i}", prompt(i, 12), sampling(800)))


@pytest.mark.parametrize(
    ("token_s", "attended_s", "step_s"),
    [
        (0.0002, 2e-7, 0.001),
        (0.001, 0.0, 0.001),
        (0.001, 2e-7, 0.03),
        (0.001, 4e-6, 0.001),
        (0.004, 2e-7, 0.03),
        (0.004, 4e-6, 0.001),
    ],
)
def test_a_long_prompt_beside_streams_keeps_its_steps_short(
    token_s: float, attended_s: float, step_s: float
) -> None:
    desk = desk_of(MAX_STEP_S)
    streams(desk, 8)
    run(desk, token_s, attended_s, step_s)
    desk.submit(request("long", prompt(9, 4000), sampling(4)))
    steps = run(desk, token_s, attended_s, step_s)
    least_s = step_s + (8 + LEAST_TOKENS) * (token_s + 4100 * attended_s)
    assert max(took_s for _, took_s in steps) < max(1.5 * MAX_STEP_S, least_s)
    # And not much shorter than they may be: that would only make the prompt slower.
    for num_tokens, took_s in steps[3:-1]:
        assert num_tokens == 512 or took_s > 0.6 * MAX_STEP_S


def test_a_prompt_far_behind_a_known_beginning_gets_less_in_its_first_step() -> None:
    desk = desk_of(MAX_STEP_S)
    desk.submit(request("first", prompt(9, 7000), sampling(1)))
    while desk.open_requests:
        plan = desk.scheduler.plan(desk.now_s)
        assert plan is not None
        desk.now_s += duration_s(plan, 0.0005, 1e-6, 0.001)
        desk.finish(plan)
    streams(desk, 8)
    for _ in range(10):
        run(desk, 0.0005, 1e-6, 0.001)
    desk.submit(request("again", (*prompt(9, 6990), *prompt(5, 400)), sampling(4)))
    steps = run(desk, 0.0005, 1e-6, 0.001)
    assert all(took_s < 1.2 * MAX_STEP_S for _, took_s in steps)


def test_the_first_step_is_small_and_answers_always_fit() -> None:
    desk = desk_of(MAX_STEP_S)
    desk.submit(request("first", prompt(3, 500), sampling(1)))
    plan = desk.scheduler.plan(desk.now_s)
    assert plan is not None
    assert plan.num_tokens == FIRST_TOKENS
    desk.cancel("first")
    desk.now_s += 60
    desk.finish(plan)
    streams(desk, 8)
    run(desk, 0.2, 0.0, 0.0)
    desk.submit(request("long", prompt(9, 3000), sampling(4)))
    steps = []
    for _ in range(40):
        plan = desk.scheduler.plan(desk.now_s)
        assert plan is not None
        steps.append(plan.num_tokens)
        desk.now_s += 0.2 * plan.num_tokens
        desk.finish(plan)
    assert set(steps) == {8 + LEAST_TOKENS}
    assert len(desk.tokens("s7")) > 40


def test_without_a_limit_of_time_only_tokens_count() -> None:
    desk = desk_of(math.inf)
    desk.submit(request("long", prompt(9, 7000), sampling(1)))
    steps = run_all(desk)
    assert steps == [512] * 13 + [344]


def run_all(desk: Desk) -> list[int]:
    steps = []
    while desk.open_requests:
        plan = desk.scheduler.plan(desk.now_s)
        assert plan is not None
        steps.append(plan.num_tokens)
        desk.now_s += 1.0
        desk.finish(plan)
    return steps
