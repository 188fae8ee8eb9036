"""Messages between processes: one tagged union a corridor. msgpack by msgspec, no pickle.

    HTTP worker ──ToEngine──▶ engine        engine ──ToWorker──▶ HTTP worker

The engine's ROUTER identity of a worker is that worker's reply address.
"""

import msgspec

from roost.core.events import Accepted, Delta, Ended, Started
from roost.core.request import GenerateRequest, Origin, RequestId


class Hello(msgspec.Struct, frozen=True, array_like=True, tag="hello"):
    """A worker's first word in each of its lives; the engine answers with Welcome."""

    origin: Origin


class Cancel(msgspec.Struct, frozen=True, array_like=True, tag="cancel"):
    """End a request, exactly this rid. `is_disconnect`: its client has gone, nobody listens.

    owner: only if it is this life of a worker that asked for it; None: whoever did. A client that
    leaves takes back what it asked for itself, never another's request of the same rid.
    """

    rid: RequestId
    is_disconnect: bool
    owner: Origin | None = None


class Control(msgspec.Struct, frozen=True, array_like=True, tag="control"):
    """A call on the whole engine; answered to `origin` by ControlDone with the same call_id.

    verb is one of: abort_all, flush_cache, pause, resume, load.
    """

    origin: Origin
    call_id: str
    verb: str
    argument: str = ""


class Goodbye(msgspec.Struct, frozen=True, array_like=True, tag="goodbye"):
    """A worker leaves (or the supervisor says that it died): cancel what it asked for."""

    origin: Origin


ToEngine = Hello | GenerateRequest | Cancel | Control | Goodbye


class ModelFacts(msgspec.Struct, frozen=True, array_like=True):
    """What a front must know of the engine's model and pool to check requests and to report."""

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


class Welcome(msgspec.Struct, frozen=True, array_like=True, tag="welcome"):
    engine_epoch: int
    facts: ModelFacts


class Output(msgspec.Struct, frozen=True, array_like=True):
    """One event and the request it is about. Made by the outbox, from an envelope, only."""

    rid: RequestId
    event: Accepted | Started | Delta | Ended


class Outputs(msgspec.Struct, frozen=True, array_like=True, tag="outputs"):
    """All that one step says to one worker, in order."""

    outputs: tuple[Output, ...]


class Load(msgspec.Struct, frozen=True, array_like=True):
    """How busy the engine is; part of each heartbeat."""

    num_running: int = 0
    num_waiting: int = 0
    num_used_tokens: int = 0
    num_kv_tokens: int = 0
    num_steps: int = 0
    generated_tokens_total: int = 0


class Heartbeat(msgspec.Struct, frozen=True, array_like=True, tag="heartbeat"):
    """The engine is alive (monotonic seconds of this machine), and how it fares."""

    at_s: float
    load: Load


class ControlDone(msgspec.Struct, frozen=True, array_like=True, tag="control_done"):
    call_id: str
    is_ok: bool
    message: str = ""


ToWorker = Welcome | Outputs | Heartbeat | ControlDone
