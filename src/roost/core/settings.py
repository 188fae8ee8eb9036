"""The settings themselves: small frozen parts, composed into one.

Each field's description is its help, and its line in docs/configuration.md.
"""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

KvDtype = Literal["bf16", "f32", "int8"]
_Count = Annotated[int, Meta(ge=1)]
_Seconds = Annotated[float, Meta(gt=0)]


class ModelConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which model, and how it is loaded."""

    model: Annotated[
        str,
        Meta(
            min_length=1,
            description="The model: `demo`, a .gguf file, a Hugging Face folder, or a hub id "
            "`org/name[:file.gguf]`.",
        ),
    ] = "demo"
    served_model_name: Annotated[
        tuple[str, ...],
        Meta(description="Names that clients may use for it. Default: from the model's name."),
    ] = ()
    chat_template: Annotated[
        str | None,
        Meta(description="A file with a Jinja chat template to use instead of the model's own."),
    ] = None
    context_length: Annotated[
        _Count | None,
        Meta(description="Longest prompt and answer together, in tokens. Default: the model's."),
    ] = None
    quantize: Annotated[
        Literal["none", "int8", "int4"],
        Meta(description="Quantise the float weights of a checkpoint while loading it."),
    ] = "none"
    cache_dir: Annotated[
        str | None,
        Meta(description="Where packed weights are kept. Default: `roost` in the user's cache."),
    ] = None


class ServerConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The HTTP side: where it listens, who may ask, how it ends."""

    host: Annotated[str, Meta(min_length=1, description="Address to listen on.")] = "127.0.0.1"
    port: Annotated[
        int, Meta(ge=0, le=65535, description="Port to listen on; 0 picks a free one.")
    ] = 30000
    http_workers: Annotated[
        int, Meta(ge=1, le=64, description="Processes that speak HTTP and detokenise.")
    ] = 1
    api_key: Annotated[
        tuple[str, ...],
        Meta(
            description="Keys that clients must send, as `Authorization: Bearer …`. "
            "Default: no key is needed.",
            extra={"is_secret": True},
        ),
    ] = ()
    admin_key: Annotated[
        str | None,
        Meta(
            description="Key for control calls (abort, flush). Default: an API key does; with "
            "neither, they are refused unless the server listens on loopback.",
            extra={"is_secret": True},
        ),
    ] = None
    max_request_bytes: Annotated[
        int, Meta(ge=1024, description="Largest request body, in bytes; a larger one gets 413.")
    ] = 32 << 20
    request_timeout_s: Annotated[
        _Seconds | None,
        Meta(description="Seconds a request may take in all; then it ends with 504."),
    ] = None
    queue_timeout_s: Annotated[
        _Seconds | None,
        Meta(description="Seconds a request may wait in the queue; then it ends with 504."),
    ] = None
    heartbeat_timeout_s: Annotated[
        float,
        Meta(gt=0, description="Seconds without a sign of life after which /health says 503."),
    ] = 10.0
    drain_timeout_s: Annotated[
        float,
        Meta(ge=0, description="Seconds that running requests get to finish after SIGTERM."),
    ] = 30.0
    notify_batch_size: Annotated[
        int,
        Meta(
            ge=1,
            description="Outputs of the engine that a worker hands on in one go, before others of "
            "its connections get their turn.",
        ),
    ] = 64


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The engine: what it computes with, and how much at once."""

    threads: Annotated[
        _Count | None,
        Meta(description="Threads that compute. Default: the usable cores."),
    ] = None
    isa: Annotated[
        Literal["portable", "avx2", "avx512"] | None,
        Meta(description="Instruction set of the kernels. Default: the best this machine has."),
    ] = None
    kv_dtype: Annotated[
        KvDtype,
        Meta(
            description="Type in which keys and values are kept. int8, with scales for each token "
            "and head, takes little more than half of bf16's memory."
        ),
    ] = "bf16"
    max_running_requests: Annotated[
        int, Meta(ge=1, le=4096, description="Most requests that run in one step.")
    ] = 64
    max_queued_requests: Annotated[
        int, Meta(ge=1, description="Most requests that wait; one more gets 503.")
    ] = 1024
    schedule_policy: Annotated[
        Literal["lpm", "fcfs", "priority", "fair"],
        Meta(
            description="Which waiting request goes first: that with the longest known prefix, the "
            "first come, that of the highest priority (lower ones give way), or that of the API "
            "key that got least. Nobody waits for ever."
        ),
    ] = "lpm"
    prefix_cache: Annotated[
        Literal["on", "off"],
        Meta(description="Keep what was computed, and compute a known beginning once."),
    ] = "on"
    eviction: Annotated[
        Literal["lru", "lfu", "fifo"],
        Meta(
            description="What the prefix cache gives up first: what was used longest ago, least "
            "often, or came first."
        ),
    ] = "lru"
    kv_disk: Annotated[
        str | None,
        Meta(
            description="`DIR:SIZE`, as in `/var/cache/kv:2GiB`: what the prefix cache gives up is "
            "kept there, and read back when wanted, also by the next server. Default: nowhere."
        ),
    ] = None
    speculate: Annotated[
        Literal["ngram", "off"],
        Meta(
            description="Try tokens that came after the same tokens before, in steps with room for "
            "them. Answers stay the same to the last bit; those that repeat come faster."
        ),
    ] = "ngram"
    max_sessions: Annotated[
        int, Meta(ge=0, description="Most sessions that are open at a time; one more is refused.")
    ] = 1024
    session_timeout_s: Annotated[
        _Seconds | None,
        Meta(description="Seconds after which an idle session is closed."),
    ] = 3600.0
    session_busy: Annotated[
        Literal["wait", "refuse"],
        Meta(description="What a turn does that goes on from one which still runs."),
    ] = "wait"
    max_total_tokens: Annotated[
        Annotated[int, Meta(ge=16)] | None,
        Meta(description="Tokens that the KV cache holds. Default: from the free memory."),
    ] = None
    max_step_tokens: Annotated[
        int,
        Meta(
            ge=16,
            le=8192,
            description="Most tokens computed in one step. Larger is faster for long prompts; "
            "smaller keeps running streams smoother.",
        ),
    ] = 512
    max_step_ms: Annotated[
        int,
        Meta(
            ge=0,
            description="Milliseconds that a step should take at most: long prompts are cut so "
            "that running streams go on. 0: no limit but `max_step_tokens`.",
        ),
    ] = 150


class LogConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is written to standard error."""

    log_level: Annotated[
        Literal["debug", "info", "warning", "error"], Meta(description="Least level that is shown.")
    ] = "info"
    log_format: Annotated[
        Literal["console", "json"], Meta(description="For people, or one JSON object a line.")
    ] = "console"


class ServeConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All settings of one server, resolved. Encodes to JSON for the processes it starts."""

    model: ModelConfig = ModelConfig()
    server: ServerConfig = ServerConfig()
    engine: EngineConfig = EngineConfig()
    log: LogConfig = LogConfig()
