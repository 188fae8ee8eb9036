"""Decides what runs next. Pure, synchronous, deterministic: no tensor, no socket, no clock.

Takes requests, cancels, session calls, step results, the time. Gives plans and addressed events.
"""

from roost.sched.admission import SchedLimits
from roost.sched.endings import Addressed
from roost.sched.policies import PolicyName
from roost.sched.scheduler import Scheduler
from roost.sched.sequence import NewStopMatcher, StopMatch, StopMatcher, TokenBytes

__all__ = [
    "Addressed",
    "NewStopMatcher",
    "PolicyName",
    "SchedLimits",
    "Scheduler",
    "StopMatch",
    "StopMatcher",
    "TokenBytes",
]
