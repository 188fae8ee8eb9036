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
        How long a control call waits for its answer.
    num_intake_threads:
        Threads that tokenise and render.
    """

    request_timeout_s: float = math.inf
    heartbeat_timeout_s: float = 10.0
    control_timeout_s: float = 10.0
    num_intake_threads: int = 2
