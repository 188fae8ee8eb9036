"""Does what sched decided: a plan's slices become arrays for one run of the model's program.

Takes batch plans. Gives step results; the KV cache and the weights behind them are its own.
"""

from roost.runner.build import BuiltRunner, RunnerOptions, build_runner
from roost.runner.memory import FreeMemory, KvNeeds, KvPlan, plan_kv
from roost.runner.runner import Closeable, Program, Runner

__all__ = [
    "BuiltRunner",
    "Closeable",
    "FreeMemory",
    "KvNeeds",
    "KvPlan",
    "Program",
    "Runner",
    "RunnerOptions",
    "build_runner",
    "plan_kv",
]
