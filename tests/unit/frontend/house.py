"""A real frontend and a real engine loop over a fake model, on one event loop."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import TypeVar

from tests.sim.fake_runner import EOS_ID, VOCAB_SIZE, FakeRunner, letters
from tests.sim.letters import letter_template, letter_tokenizer

from roost.cache import KvCache, PagePool
from roost.core.clock import ManualClock
from roost.core.plan import PAGE_TOKENS
from roost.core.request import Origin
from roost.frontend import Answers, Ask, Frontend, FrontendSettings, Piece, TextTools
from roost.sched import SchedLimits, Scheduler
from roost.text import StopMatcher
from roost.wire import MemoryCorridor
from roost.wire.messages import ModelFacts
from roost.worker import EngineLoop

_MAX_RUNNING = 8
_Result = TypeVar("_Result")


class House:
    """step: one turn of the engine, and whatever the frontend makes of it."""

    def __init__(self, *, num_pages: int, max_context_tokens: int, max_queued: int) -> None:
        self.clock = ManualClock(100.0)
        self.corridor = MemoryCorridor()
        self.runner = FakeRunner(num_pages)
        self.scheduler = Scheduler(
            KvCache(PagePool(num_pages)),
            SchedLimits(
                vocab_size=VOCAB_SIZE,
                max_context_tokens=max_context_tokens,
                max_running=_MAX_RUNNING,
                max_queued=max_queued,
                max_step_tokens=32,
                eos_ids=frozenset({EOS_ID}),
            ),
            letters,
            StopMatcher,
        )
        facts = ModelFacts(
            model_path="/letters.gguf",
            model_type="letters",
            architecture="Letters",
            vocab_size=VOCAB_SIZE,
            max_context_tokens=max_context_tokens,
            eos_ids=(EOS_ID,),
            num_kv_tokens=num_pages * PAGE_TOKENS,
            kv_dtype="f32",
            isa="none",
            num_threads=1,
            weight_version="default",
            max_requests=_MAX_RUNNING + max_queued,
        )
        self.engine = EngineLoop(
            self.corridor.engine,
            self.scheduler,
            self.runner,
            facts,
            clock=self.clock,
        )
        self._num_fronts = 0

    @asynccontextmanager
    async def front(
        self,
        settings: FrontendSettings | None = None,
        on_log_level: Callable[[str], None] = lambda _: None,
    ) -> AsyncIterator[Frontend]:
        """An open frontend of its own origin."""
        origin = Origin(self._num_fronts, 1)
        self._num_fronts += 1
        tools = TextTools(letter_tokenizer(), letter_template())
        channel = self.corridor.connect(origin)
        frontend = Frontend(channel, origin, tools, self.clock, settings, on_log_level=on_log_level)
        opening = asyncio.create_task(frontend.open())
        while not opening.done():
            await self.step()
        await opening
        yield frontend
        await frontend.close()
        assert frontend.live == ()
        frontend._core.check()

    async def step(self, num: int = 1) -> None:
        for _ in range(num):
            self.engine.step()
            for _ in range(6):  # the selector, the callback, the reader, and what it wakes
                await asyncio.sleep(0)

    async def submit(self, frontend: Frontend, ask: Ask) -> Answers:
        """Submit while the engine turns but computes no step."""
        self.engine._desk.is_paused = True
        submitting = asyncio.create_task(frontend.submit(ask))
        while not submitting.done():
            await self.step()
        self.engine._desk.is_paused = False
        return await submitting

    async def pieces(self, answers: Answers) -> list[Piece]:
        """All pieces to the end, the reader as quick as it can be."""
        found: list[Piece] = []

        async def read() -> None:
            async for piece in answers:
                found.append(piece)

        reading = asyncio.create_task(read())
        while not reading.done():
            await self.step()
        await reading
        return found

    async def settled(self, work: Awaitable[_Result]) -> _Result:
        """What `work` gives, while the engine turns."""
        task = asyncio.ensure_future(work)
        while not task.done():
            await self.step()
        return await task

    async def ask(self, frontend: Frontend, ask: Ask) -> list[Piece]:
        return await self.pieces(await self.submit(frontend, ask))


@asynccontextmanager
async def house(
    *, num_pages: int = 64, max_context_tokens: int = 256, max_queued: int = 100
) -> AsyncIterator[House]:
    """Afterwards nothing lives in it and its books balance."""
    built = House(num_pages=num_pages, max_context_tokens=max_context_tokens, max_queued=max_queued)
    yield built
    await built.step(3)
    load = built.scheduler.load()
    assert (load.num_running, load.num_waiting, load.num_used_pages) == (0, 0, 0)
    built.engine.close()


def text_of(pieces: Sequence[Piece], index: int = 0) -> str:
    return "".join(piece.text for piece in pieces if piece.index == index)


def tokens_of(pieces: Sequence[Piece], index: int = 0) -> list[int]:
    return [t for piece in pieces if piece.index == index for t in piece.token_ids]
