"""From a loaded model to a runner: threads, KV cache, recorded program."""

from collections.abc import Callable
from dataclasses import dataclass

import roost
from roost.cache import DiskPages, DiskPlace, identity_of
from roost.core.plan import PAGE_TOKENS
from roost.core.settings import KvDtype
from roost.kernels import NUMERICS, ThreadPool, choose_isa, usable_cores
from roost.models import LoadedModel
from roost.programs import CpuBuilder, KvShape
from roost.runner.memory import FreeMemory, KvNeeds, KvPlan, plan_kv
from roost.runner.runner import Runner


@dataclass(frozen=True, slots=True)
class RunnerOptions:
    """What is asked for; None: the best choice of the machine or model.

    max_context_tokens is settled by the caller: it is at most the model's. kv_disk: where pages are
    kept that the cache gives up. identity: of the weights as they are loaded.
    """

    max_context_tokens: int
    max_running: int
    max_step_tokens: int
    identity: str = ""
    kv_dtype: KvDtype = "bf16"
    isa: str | None = None
    num_threads: int | None = None
    kv_tokens: int | None = None
    kv_disk: DiskPlace | None = None


@dataclass(frozen=True, slots=True)
class BuiltRunner:
    """A runner, and the facts that were decided on the way. why: a line for each."""

    runner: Runner
    kv: KvPlan
    isa: str
    num_threads: int
    why: tuple[str, ...]
    store: DiskPages | None = None


def build_runner(
    model: LoadedModel, options: RunnerOptions, measure: Callable[[], FreeMemory]
) -> BuiltRunner:
    """Record `model` for this machine's CPU, with as large a KV cache as `measure` leaves room for.

    Raises ModelError when the cache does not fit, ConfigError for an instruction set that this
    machine lacks, and for a place on disk that cannot be used.
    """
    traits = model.traits
    isa = choose_isa(options.isa)
    num_threads, threads_why = usable_cores()
    if options.num_threads is not None:
        num_threads, threads_why = options.num_threads, "as asked"
    shape = KvShape(traits.num_layers, traits.num_kv_heads, traits.head_dim, options.kv_dtype)
    needs = KvNeeds(
        token_bytes=shape.page_bytes // PAGE_TOKENS,
        max_context_tokens=options.max_context_tokens,
        max_running=options.max_running,
        asked_tokens=options.kv_tokens,
    )
    kv = plan_kv(needs, measure())
    pool = ThreadPool(num_threads)
    try:
        builder = CpuBuilder(
            max_rows=options.max_step_tokens,
            max_logits_rows=options.max_step_tokens,
            isa=isa,
            pool=pool,
            kv=shape,
            num_pages=kv.num_pages,
            max_context_tokens=options.max_context_tokens,
        )
        model.record(builder)
        program = builder.finish()
        store = _store(options, shape, isa)
    except BaseException:
        pool.close()
        raise
    why = (
        f"isa {isa}: " + ("as asked" if options.isa else "the best of this machine"),
        f"threads {num_threads}: {threads_why}",
        f"KV cache {options.kv_dtype}, {kv.why}",
        *model.notes,
    )
    if store is not None:
        why += (f"KV on disk: {store.num_pages * PAGE_TOKENS} tokens are there",)
    runner = Runner(program, pool, shelf=store)
    return BuiltRunner(runner, kv, isa, num_threads, why, store)


def pages_identity(weights: str, isa: str, shape: KvShape, numerics: int = NUMERICS) -> bytes:
    """Of pages on disk. What is kept is read again where it would be computed again to the bit: by
    this version of roost with these kernels, with these weights, on these instructions.
    """
    return identity_of(roost.__version__, f"numerics {numerics}", weights, isa, repr(shape))


def _store(options: RunnerOptions, shape: KvShape, isa: str) -> DiskPages | None:
    """Raises ConfigError."""
    place = options.kv_disk
    if place is None:
        return None
    identity = pages_identity(options.identity, isa, shape)
    return DiskPages(place.folder, place.max_bytes, shape.page_bytes, identity)
