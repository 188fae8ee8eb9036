"""The wire room: corridors between the engine and its fronts, in one process or between many.

Takes messages of two tagged unions and the address (origin) of each worker.
Gives two ends, EngineSide and WorkerSide, that behave alike in memory and over sockets.
"""

from roost.wire.channel import EngineSide, WorkerSide
from roost.wire.memory import MemoryCorridor
from roost.wire.topology import SUPERVISOR, engine_address, identity_of, origin_of

__all__ = [
    "SUPERVISOR",
    "EngineSide",
    "MemoryCorridor",
    "WorkerSide",
    "engine_address",
    "identity_of",
    "origin_of",
]
