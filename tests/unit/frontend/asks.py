"""Asks of the letters' model, and what it answers."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import wraps
from typing import ParamSpec

from tests.sim.fake_runner import alone, letters
from tests.sim.requests import sampling

from roost.core.outcome import Outcome
from roost.core.params import SamplingParams
from roost.frontend import (
    Piece,
    TextPrompt,
)

P = ParamSpec("P")
HELLO = TextPrompt("hello")
HELLO_IDS = (7, 4, 11, 11, 14)


def runs(test: Callable[P, Awaitable[None]]) -> Callable[P, None]:
    """Run an async test to its end."""

    @wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        async def main() -> None:
            async with asyncio.timeout(30):
                await test(*args, **kwargs)

        asyncio.run(main())

    return run


def params(num: int = 6, **more: object) -> SamplingParams:
    return SamplingParams(**({"max_new_tokens": num, "ignore_eos": True, "seed": 1} | more))  # type: ignore[arg-type]


def ending(pieces: list[Piece], index: int = 0) -> Outcome:
    endings = [p.ended for p in pieces if p.index == index and p.ended is not None]
    assert len(endings) == 1
    return endings[0].outcome


def expected(num: int, seed: int = 1, prompt: tuple[int, ...] = HELLO_IDS) -> list[int]:
    return alone(prompt, sampling(num, seed=seed))


def spelled(ids: list[int]) -> str:
    return b"".join(letters(i, True) for i in ids).decode()
