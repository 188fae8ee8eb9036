"""What bounds a front end: times and sizes, frozen."""

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FrontendSettings:
    """Parameters
    ----------
    request_timeout_s:
        Deadline of a request that brings none; inf: none.
    heartbeat_timeout_s:
        The engine is dead to us when it has said nothing for so long (it beats twice a second).
    control_timeout_s:
        How long a control call waits for its answer, beside the time that it grants the engine.
    audit_after_s:
        A request of which nothing was heard for so long is asked for: a message may be lost.
    notify_batch_size:
        Most outputs that are handed on before the event loop does something else.
    num_intake_threads:
        Threads that tokenise and render.
    """

    request_timeout_s: float = math.inf
    heartbeat_timeout_s: float = 10.0
    control_timeout_s: float = 10.0
    audit_after_s: float = 5.0
    notify_batch_size: int = 64
    num_intake_threads: int = 2
