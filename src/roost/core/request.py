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

    serial: the number of the request at its origin, counting up from 1. A client may use a rid
    again; with the origin, the serial names this one request and never another.
    group: the name of the call that asked for several answers; aborting it aborts them all.
    tenant: who asks, as far as keys tell; "": nobody needs one. It is no key, but its digest.
    `arrival_s` and `deadline_s` are monotonic seconds of this machine; no deadline is `inf`.
    """

    rid: RequestId
    origin: Origin
    serial: int
    arrival_s: float
    deadline_s: float
    priority: int
    trace: str
    group: str = ""
    tenant: str = ""

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


class SessionTurn(msgspec.Struct, frozen=True, array_like=True):
    """Where a request goes on in a session. Its prompt is what it goes on from, and its own ids.

    parent: the turn that it goes on from, by its rid; None: it begins a new root.
    offset: how much of the parent's tokens (prompt and answer) is kept: > 0 the first so many,
    < 0 all but the last so many, 0 all of them.
    drops_output: the parent's answer is left out, before `offset` counts.
    replaces: when this turn has ended well, the parent's other children are dropped with all that
    follows from them; without a parent, everything else in the session is.
    is_clamped: max_new_tokens is cut to what fits behind the whole prompt.
    """

    session_id: str
    parent: RequestId | None = None
    offset: int = 0
    drops_output: bool = False
    replaces: bool = False
    is_clamped: bool = False


class GenerateRequest(msgspec.Struct, frozen=True, array_like=True, tag="generate"):
    """One request for one answer, checked. Lists and n > 1 were split at the door.

    turn: of a session; `prompt_ids` are then the new ids only, and what depends on the whole prompt
    is checked by the engine, which knows it.
    namespace: only requests of the same one find each other's beginnings in the cache.
    """

    envelope: Envelope
    prompt_ids: tuple[int, ...]
    sampling: Sampling
    logprobs: LogprobsWanted
    turn: SessionTurn | None = None
    namespace: str = ""
