"""How many KV pages a machine has room for."""

from dataclasses import dataclass

from roost.core.errors import ModelError
from roost.core.plan import PAGE_TOKENS

# The share of what is free that the pool takes unasked. The pages are touched as they are used, so
# a pool costs nothing while it is idle; full, it leaves three quarters to the rest of the machine.
_DEFAULT_SHARE = 1 / 4
# Asked for by number, the pool may have nearly everything. What is left is for activations, Python
# and the page cache that the weights are read through.
_LARGEST_SHARE = 9 / 10
# A server whose longest request is shorter than this is of no use to anybody.
_LEAST_TOKENS = 256


@dataclass(frozen=True, slots=True)
class FreeMemory:
    """Bytes that this process may still take, and what says so."""

    num_bytes: int
    why: str


@dataclass(frozen=True, slots=True)
class KvNeeds:
    """What the model and the settings ask of the pool. token_bytes: KV of one token, all layers."""

    token_bytes: int
    max_context_tokens: int
    max_running: int
    asked_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class KvPlan:
    """The pool's size, and in one line why."""

    num_pages: int
    num_bytes: int
    why: str

    @property
    def num_tokens(self) -> int:
        return self.num_pages * PAGE_TOKENS


def plan_kv(needs: KvNeeds, free: FreeMemory) -> KvPlan:
    """Size the pool. Raises ModelError, naming the numbers, where it cannot be of any use."""
    page_bytes = needs.token_bytes * PAGE_TOKENS
    if needs.asked_tokens is not None:
        num_pages = -(-needs.asked_tokens // PAGE_TOKENS)
        room = int(free.num_bytes * _LARGEST_SHARE)
        if num_pages * page_bytes > room:
            raise ModelError(
                f"max_total_tokens={needs.asked_tokens} needs {_gib(num_pages * page_bytes)} of KV "
                f"cache ({needs.token_bytes} bytes a token); {_gib(room)} may be used of "
                f"{_gib(free.num_bytes)} free ({free.why})"
            )
        return _plan(num_pages, page_bytes, "as asked")
    useful = -(-needs.max_running * needs.max_context_tokens // PAGE_TOKENS)
    affordable = int(free.num_bytes * _DEFAULT_SHARE) // page_bytes
    least = -(-min(_LEAST_TOKENS, needs.max_context_tokens) // PAGE_TOKENS)
    if affordable < least:
        raise ModelError(
            f"no room for a KV cache: {least * PAGE_TOKENS} tokens need {_gib(least * page_bytes)} "
            f"({needs.token_bytes} bytes a token), and a quarter of the free memory is "
            f"{_gib(free.num_bytes // 4)} ({free.why})"
        )
    if useful <= affordable:
        why = f"all that {needs.max_running} requests of {needs.max_context_tokens} tokens can use"
        return _plan(useful, page_bytes, why)
    why = f"a quarter of {_gib(free.num_bytes)} free ({free.why})"
    return _plan(affordable, page_bytes, why)


def _plan(num_pages: int, page_bytes: int, why: str) -> KvPlan:
    size = _gib(num_pages * page_bytes)
    return KvPlan(
        num_pages, num_pages * page_bytes, f"{num_pages * PAGE_TOKENS} tokens, {size}: {why}"
    )


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / 2**30:.2f} GiB"
