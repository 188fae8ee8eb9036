"""Messages between processes: one tagged union a corridor. msgpack by msgspec, no pickle.

    HTTP worker ──ToEngine──▶ engine        engine ──ToWorker──▶ HTTP worker

The engine's ROUTER identity of a worker is that worker's reply address.
"""

import msgspec

from roost.core.calls import Broadcast, Call
from roost.core.events import Accepted, Delta, Ended, Started
from roost.core.request import GenerateRequest, Origin, RequestId


class Hello(msgspec.Struct, frozen=True, array_like=True, tag="hello"):
    """A worker's first word in each of its lives; the engine answers with Welcome."""

    origin: Origin


class Cancel(msgspec.Struct, frozen=True, array_like=True, tag="cancel"):
    """The owner takes one request back: the one that it gave this serial, and no other.

    is_disconnect: its client has gone and nobody listens; else its client wants it ended, and
    `message` is what it reads.
    """

    origin: Origin
    serial: int
    is_disconnect: bool
    message: str = ""


class Control(msgspec.Struct, frozen=True, array_like=True, tag="control"):
    """A call on the whole server; answered to `origin` by ControlDone with the same call_id."""

    origin: Origin
    call_id: str
    call: Call


class Noted(msgspec.Struct, frozen=True, array_like=True, tag="noted"):
    """A worker has done what a Notice said. count: requests of its own that it touched."""

    origin: Origin
    call_id: str
    count: int


class Audit(msgspec.Struct, frozen=True, array_like=True, tag="audit"):
    """A worker has heard nothing of these requests for a while: does the engine hold them?

    Answered by Audited with the same number. It makes up for a message that got lost.
    """

    origin: Origin
    number: int
    serials: tuple[int, ...]


class Goodbye(msgspec.Struct, frozen=True, array_like=True, tag="goodbye"):
    """A worker leaves (or the supervisor says that it died): cancel what it asked for."""

    origin: Origin


ToEngine = Hello | GenerateRequest | Cancel | Control | Noted | Audit | Goodbye


class ModelFacts(msgspec.Struct, frozen=True, array_like=True):
    """What a front must know of the engine's model and pool to check requests and to report.

    max_requests: most that the engine holds, running and waiting; a front need not hold more.
    loaded_s: when the model was ready, in Unix seconds.
    """

    model_path: str
    model_type: str
    architecture: str
    vocab_size: int
    max_context_tokens: int
    eos_ids: tuple[int, ...]
    num_kv_tokens: int
    kv_dtype: str
    isa: str
    num_threads: int
    weight_version: str
    max_requests: int
    loaded_s: int = 0


class Welcome(msgspec.Struct, frozen=True, array_like=True, tag="welcome"):
    """The engine's answer to Hello. log_level: what SetLogLevel said last; "": nothing so far."""

    engine_epoch: int
    facts: ModelFacts
    log_level: str = ""


class Output(msgspec.Struct, frozen=True, array_like=True):
    """One event and the request it is about. Made by the outbox, from an envelope, only.

    serial: which request of that rid, as its origin numbered it.
    """

    rid: RequestId
    serial: int
    event: Accepted | Started | Delta | Ended


class Outputs(msgspec.Struct, frozen=True, array_like=True, tag="outputs"):
    """All that one step says to one worker, in order."""

    outputs: tuple[Output, ...]


class Load(msgspec.Struct, frozen=True, array_like=True):
    """How busy the engine is; part of each heartbeat.

    num_used_tokens: of KV slots, what live requests hold. num_cached_tokens: what the prefix cache
    keeps, in use or not. num_gone: lives of workers that were given up. num_undelivered: outputs
    that reached nobody. num_disk_tokens: what is kept on disk. disk_read_tokens_total: what ever
    came back from there. num_drafts, num_right_drafts: tokens that speculation ever tried, and
    those of them that were right.
    """

    num_running: int = 0
    num_waiting: int = 0
    num_used_tokens: int = 0
    num_cached_tokens: int = 0
    num_kv_tokens: int = 0
    num_steps: int = 0
    generated_tokens_total: int = 0
    num_gone: int = 0
    num_undelivered: int = 0
    num_disk_tokens: int = 0
    disk_read_tokens_total: int = 0
    num_drafts: int = 0
    num_right_drafts: int = 0


class Heartbeat(msgspec.Struct, frozen=True, array_like=True, tag="heartbeat"):
    """The engine is alive (monotonic seconds of this machine), and how it fares."""

    at_s: float
    load: Load


class ControlDone(msgspec.Struct, frozen=True, array_like=True, tag="control_done"):
    """What became of a call. count: requests that it touched, of whichever worker. result: JSON,
    where the call asked for something. code, status: of the refusal, when it is not ok.
    """

    call_id: str
    is_ok: bool
    message: str = ""
    count: int = 0
    result: str = ""
    code: str = ""
    status: int = 0


class Notice(msgspec.Struct, frozen=True, array_like=True, tag="notice"):
    """A call that concerns every worker; each answers with Noted. Comes behind all that the engine
    said before.
    """

    call_id: str
    call: Broadcast


class Audited(msgspec.Struct, frozen=True, array_like=True, tag="audited"):
    """Of the requests of that audit, those that the engine does not hold. Comes behind all that the
    engine said of them.
    """

    number: int
    missing: tuple[int, ...]


ToWorker = Welcome | Outputs | Heartbeat | ControlDone | Notice | Audited
