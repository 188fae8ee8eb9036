"""Does what sched decided: a plan's slices become arrays for one run of the model's program.

Takes batch plans. Gives step results; the KV cache and the weights behind them are its own.
"""

from roost.runner.memory import FreeMemory, KvNeeds, KvPlan, plan_kv
from roost.runner.runner import Program, Runner

__all__ = ["FreeMemory", "KvNeeds", "KvPlan", "Program", "Runner", "plan_kv"]
