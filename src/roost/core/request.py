"""What travels down: the envelope, and the request it is on."""

from typing import NewType

import msgspec

from roost.core.params import Sampling

RequestId = NewType("RequestId", str)

HEALTH_PREFIX = "HEALTH_CHECK"


class Origin(msgspec.Struct, frozen=True, array_like=True):
    """Which HTTP worker asked, and in which of its lives."""

    worker: int
    epoch: int


class Envelope(msgspec.Struct, frozen=True, array_like=True):
    """The address of an answer. Every field that routing needs is always there.

    group: the name of the call that asked for several answers; cancelling it cancels them all.
    `arrival_s` and `deadline_s` are monotonic seconds of this machine; no deadline is `inf`.
    """

    rid: RequestId
    origin: Origin
    arrival_s: float
    deadline_s: float
    priority: int
    trace: str
    group: str = ""

    @property
    def is_health_check(self) -> bool:
        return self.rid.startswith(HEALTH_PREFIX)


class LogprobsWanted(msgspec.Struct, frozen=True, array_like=True):
    """Which logprobs to return.

    chosen: of each generated token. prompt_from: of prompt tokens from this position on; −1: none.
    top: the k likeliest beside each. token_ids: of these ids beside each.
    All are log-softmax of the model's logits as they are, before penalties, bias and temperature.
    """

    chosen: bool = False
    prompt_from: int = -1
    top: int = 0
    token_ids: tuple[int, ...] = ()


NO_LOGPROBS = LogprobsWanted()


class GenerateRequest(msgspec.Struct, frozen=True, array_like=True, tag="generate"):
    """One request for one answer, checked. Lists and n > 1 were split at the door."""

    envelope: Envelope
    prompt_ids: tuple[int, ...]
    sampling: Sampling
    logprobs: LogprobsWanted
