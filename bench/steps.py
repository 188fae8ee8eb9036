"""What the scheduler costs in a step: plan and commit, with a model that takes no time.

    python -m bench.steps [--rows 64] [--steps 2000] [--policy lpm]

`decode`: every row gets one token a step. `queue full`: likewise, while as many requests wait as
may.
"""

import argparse
import statistics
import time
from typing import get_args

from tests.sim.requests import request, sampling

from roost.cache import KvCache, PagePool
from roost.core.plan import BatchPlan, SliceResult, StepResult
from roost.core.request import GenerateRequest
from roost.sched import PolicyName, SchedLimits, Scheduler
from roost.text import StopMatcher

_PROMPT_TOKENS = 200
_WAITING = 1000


def asked(number: int, num_new_tokens: int) -> GenerateRequest:
    """A prompt that shares nothing with others'."""
    return request(
        f"r{number}",
        (number, *range(3, _PROMPT_TOKENS + 2)),
        sampling(num_new_tokens, stop_ids=(2,)),
        serial=number + 1,
        priority=number % 3,
    )


def compute(plan: BatchPlan) -> StepResult:
    rows = (SliceResult(cut.request_id, (5,) if cut.samples else ()) for cut in plan.slices)
    return StepResult(plan.number, tuple(rows))


def measure(policy: PolicyName, rows: int, steps: int, num_waiting: int) -> float:
    """Median milliseconds of plan and commit, once all `rows` decode."""
    limits = SchedLimits(
        vocab_size=50_000,
        max_context_tokens=1 << 20,
        max_running=rows,
        max_queued=rows + num_waiting,
        max_step_tokens=max(512, 2 * rows),
        policy=policy,
        max_step_s=0.15,
    )
    num_new_tokens = steps + 1000
    num_pages = rows * ((_PROMPT_TOKENS + num_new_tokens) // 16 + 2)
    kv = KvCache(PagePool(num_pages))
    scheduler = Scheduler(kv, limits, lambda _token_id, _skip: b"x", StopMatcher)
    for number in range(rows):
        scheduler.submit(asked(number, num_new_tokens), 0.0)
    now_s = 0.0
    took_ms: list[float] = []
    while len(took_ms) < steps:
        begin = time.perf_counter()
        plan = scheduler.plan(now_s)
        middle = time.perf_counter()
        assert plan is not None, "nothing to do"
        result = compute(plan)
        now_s += 0.0001 * plan.num_tokens
        again = time.perf_counter()
        scheduler.commit(result, now_s)
        took_s = middle - begin + time.perf_counter() - again
        if plan.num_tokens == len(plan.slices) == rows:
            if not took_ms:
                for number in range(rows, rows + num_waiting):
                    # Too long to fit beside the others.
                    scheduler.submit(asked(number, num_pages * 16 - _PROMPT_TOKENS), now_s)
            took_ms.append(took_s * 1e3)
    return statistics.median(took_ms[1:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--policy", choices=get_args(PolicyName))
    args = parser.parse_args()
    policies: tuple[PolicyName, ...] = (args.policy,) if args.policy else get_args(PolicyName)
    print(f"{args.rows} rows, median ms of a step: plan and commit")
    print(f"{'':10}{'decode':>10}{'queue full':>14}")
    for policy in policies:
        decode = measure(policy, args.rows, args.steps, 0)
        full = measure(policy, args.rows, args.steps, _WAITING)
        print(f"{policy:10}{decode:10.3f}{full:14.3f}")


if __name__ == "__main__":
    main()
