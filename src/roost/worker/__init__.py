"""The engine's process: hears requests, lets sched decide and runner do, and says what came of it.

Takes the engine's end of a corridor and a model. Gives a loop to run in a thread of its own.
"""

from roost.worker.assemble import Surroundings, build_worker
from roost.worker.loop import EngineLoop, Executor
from roost.worker.machine import free_memory
from roost.worker.outbox import Outbox

__all__ = ["EngineLoop", "Executor", "Outbox", "Surroundings", "build_worker", "free_memory"]
