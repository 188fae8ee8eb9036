"""From settings to an engine that is ready to run."""

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from roost.cache import KvCache, PagePool, disk_place
from roost.core.clock import Clock
from roost.core.config import ServeConfig
from roost.core.errors import ConfigError
from roost.kernels import usable_cores
from roost.models import LoadedModel, load_model
from roost.runner import BuiltRunner, FreeMemory, RunnerOptions, build_runner
from roost.sched import SchedLimits, Scheduler, TokenBytes
from roost.text import StopMatcher, TokenTable, tokenizer_from_folder, vocab_from_gguf
from roost.weights import ModelFiles, PackOptions, open_model, resolve_model
from roost.wire import EngineSide
from roost.wire.messages import ModelFacts
from roost.worker.loop import EngineLoop
from roost.worker.machine import free_memory

_log = logging.getLogger(__name__)

# In every step there is room for this much of a prompt beside a full batch of answers.
_LEAST_PREFILL_TOKENS = 16


def _ignore(level: str) -> None:
    """The level of the log is nobody's business here."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What an engine is given of the world.

    cache_dir: where packed weights are kept; None: nowhere. on_progress: called while weights are
    packed with (bytes done, bytes in all), from the thread that packs. set_log_level: sets the
    level of this process.
    """

    clock: Clock
    cache_dir: Path | None = None
    engine_epoch: int = 1
    on_progress: Callable[[int, int], None] | None = None
    measure_memory: Callable[[], FreeMemory] = free_memory
    set_log_level: Callable[[str], None] = _ignore


def build_worker(config: ServeConfig, channel: EngineSide, around: Surroundings) -> EngineLoop:
    """Find, check and load the model, and put an engine around it.

    Raises ModelError and ConfigError, worded for people. Until it returns nothing is heard on the
    channel, which the loop then owns.
    """
    files = open_model(resolve_model(config.model.model))
    tokens = _token_table(files)
    num_threads = config.engine.threads or usable_cores()[0]
    model = load_model(
        files,
        PackOptions(
            cache_dir=around.cache_dir,
            quantize=None if config.model.quantize == "none" else config.model.quantize,
            num_threads=num_threads,
            on_progress=around.on_progress,
        ),
    )
    options = _options(config, model, files.identity())
    built = build_runner(model, options, around.measure_memory)
    for line in built.why:
        _log.info("%s", line)
    limits = _limits(config, model, options, tokens)
    kv = KvCache(
        PagePool(built.kv.num_pages),
        prefixes=config.engine.prefix_cache,
        eviction=config.engine.eviction,
        store=built.store,
    )
    scheduler = Scheduler(kv, limits, _token_bytes(tokens), StopMatcher)
    facts = _facts(files, limits, built, tokens, options.kv_dtype)
    return EngineLoop(
        channel,
        scheduler,
        built.runner,
        msgspec.structs.replace(facts, loaded_s=int(around.clock.unix_s())),
        clock=around.clock,
        engine_epoch=around.engine_epoch,
        set_log_level=around.set_log_level,
    )


def _token_table(files: ModelFiles) -> TokenTable:
    if files.container == "gguf":
        # Only an encoder has use for merges and scores, which take as much room as the pieces.
        return TokenTable(replace(vocab_from_gguf(files.metadata), merges=(), scores=()))
    return tokenizer_from_folder(files.path).table


def _token_bytes(tokens: TokenTable) -> TokenBytes:
    def token_bytes(token_id: int, skip_special: bool) -> bytes:
        return tokens.text_bytes(token_id, skip_special=skip_special)

    return token_bytes


def _options(config: ServeConfig, model: LoadedModel, identity: str) -> RunnerOptions:
    """Wishes and the model's limits → facts. Raises ConfigError. identity: of the model's files."""
    most = model.traits.max_context_tokens
    asked = config.model.context_length
    if asked is not None and asked > most:
        raise ConfigError(f"context_length={asked}: this model takes at most {most} tokens")
    engine = config.engine
    if engine.kv_disk is not None and engine.prefix_cache == "off":
        raise ConfigError("kv_disk is of no use while prefix_cache is off")
    room = max(1, engine.max_step_tokens - _LEAST_PREFILL_TOKENS)
    max_running = min(engine.max_running_requests, room)
    if max_running < engine.max_running_requests:
        _log.warning(
            "max_running_requests is %d: a step of %d tokens has no room for %d",
            max_running,
            engine.max_step_tokens,
            engine.max_running_requests,
        )
    return RunnerOptions(
        max_context_tokens=asked or most,
        max_running=max_running,
        max_step_tokens=engine.max_step_tokens,
        kv_dtype=engine.kv_dtype,
        isa=engine.isa,
        num_threads=engine.threads,
        kv_tokens=engine.max_total_tokens,
        identity=f"{identity} {config.model.quantize}",
        kv_disk=None if engine.kv_disk is None else disk_place(engine.kv_disk),
    )


def _limits(
    config: ServeConfig, model: LoadedModel, options: RunnerOptions, tokens: TokenTable
) -> SchedLimits:
    engine = config.engine
    return SchedLimits(
        vocab_size=model.traits.vocab_size,
        max_context_tokens=options.max_context_tokens,
        max_running=options.max_running,
        max_queued=engine.max_queued_requests,
        max_step_tokens=options.max_step_tokens,
        policy=engine.schedule_policy,
        max_step_s=engine.max_step_ms / 1000 or math.inf,
        queue_timeout_s=config.server.queue_timeout_s or math.inf,
        bos_id=tokens.added_bos_id,
        eos_ids=tokens.eos_ids,
        max_sessions=engine.max_sessions,
        session_timeout_s=engine.session_timeout_s or math.inf,
        session_busy=engine.session_busy,
        speculates=engine.speculate == "ngram",
    )


def _facts(
    files: ModelFiles, limits: SchedLimits, built: BuiltRunner, tokens: TokenTable, kv_dtype: str
) -> ModelFacts:
    model_type = files.metadata.get("model_type", files.architecture)
    return ModelFacts(
        model_path=str(files.path),
        model_type=str(model_type),
        architecture=files.architecture,
        vocab_size=limits.vocab_size,
        max_context_tokens=limits.max_context_tokens,
        eos_ids=tuple(sorted(tokens.eos_ids)),
        num_kv_tokens=built.kv.num_tokens,
        kv_dtype=kv_dtype,
        isa=built.isa,
        num_threads=built.num_threads,
        weight_version=files.identity(),
        max_requests=limits.max_running + limits.max_queued,
    )
