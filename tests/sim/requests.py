"""Requests for tests, with only what the test is about spelled out."""

import math
import zlib

from roost.core.params import Sampling
from roost.core.request import (
    NO_LOGPROBS,
    Envelope,
    GenerateRequest,
    LogprobsWanted,
    Origin,
    RequestId,
    SessionTurn,
)

HERE = Origin(worker=0, epoch=1)


def sampling(
    max_new_tokens: int = 4,
    *,
    min_new_tokens: int = 0,
    stop_ids: tuple[int, ...] = (),
    stops: tuple[bytes, ...] = (),
    stop_regexes: tuple[str, ...] = (),
    seed: int = 0,
    skip_special_tokens: bool = True,
) -> Sampling:
    return Sampling(
        max_new_tokens=max_new_tokens,
        min_new_tokens=min_new_tokens,
        temperature=1.0,
        top_k=0,
        top_p=1.0,
        min_p=0.0,
        frequency_penalty=0.0,
        presence_penalty=0.0,
        repetition_penalty=1.0,
        logit_bias=(),
        seed=seed,
        stop_ids=stop_ids,
        stops=stops,
        stop_regexes=stop_regexes,
        no_stop_trim=False,
        skip_special_tokens=skip_special_tokens,
    )


def serial_of(rid: str) -> int:
    """The serial that `request` gives a rid unless told otherwise: the same at every call."""
    return zlib.crc32(rid.encode())


def request(
    rid: str,
    prompt: int | tuple[int, ...] = 3,
    asked: Sampling | None = None,
    *,
    origin: Origin = HERE,
    serial: int | None = None,
    group: str = "",
    priority: int = 0,
    tenant: str = "",
    turn: SessionTurn | None = None,
    arrival_s: float = 0.0,
    deadline_s: float = math.inf,
    logprobs: LogprobsWanted = NO_LOGPROBS,
) -> GenerateRequest:
    """`prompt`: the token ids, or how many of them (then 0, 1, 2, … of the vocabulary)."""
    ids = tuple(i % 20 for i in range(prompt)) if isinstance(prompt, int) else prompt
    envelope = Envelope(
        rid=RequestId(rid),
        origin=origin,
        serial=serial_of(rid) if serial is None else serial,
        arrival_s=arrival_s,
        deadline_s=deadline_s,
        priority=priority,
        trace="",
        group=group,
        tenant=tenant,
    )
    return GenerateRequest(envelope, ids, asked or sampling(), logprobs, turn)
