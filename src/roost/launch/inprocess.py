"""The library: an engine and its frontend in this process, without HTTP."""

import asyncio
import atexit
import logging
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar, overload

from roost.core.clock import SystemClock
from roost.core.config import Layer, ServeConfig, resolve
from roost.core.errors import EngineFault
from roost.core.params import SamplingParams
from roost.core.refusal import refusal_of
from roost.core.request import NO_LOGPROBS, LogprobsWanted, Origin
from roost.frontend import (
    Answers,
    Ask,
    Frontend,
    FrontendSettings,
    Piece,
    TextPrompt,
    TokenPrompt,
)
from roost.launch.asks import Messages, ask_of, prompt_of, single_ask
from roost.launch.completion import Completion, completion_of
from roost.launch.loop_thread import LoopThread
from roost.launch.text_side import text_tools
from roost.wire import MemoryCorridor
from roost.wire.messages import ModelFacts
from roost.worker import EngineLoop, Surroundings, build_worker

_log = logging.getLogger(__name__)
# A library is quiet unless its user sets up logging.
logging.getLogger("roost").addHandler(logging.NullHandler())

_ORIGIN = Origin(worker=0, epoch=1)
# The engine is in this process: it answers at once or is broken.
_OPEN_TIMEOUT_S = 60.0

_Settings = str | int | float | None
_Result = TypeVar("_Result")


class Engine:
    """A model, ready to generate.

        with Engine("demo") as engine:
            print(engine.generate("Once upon a time").text)

    The methods may be called from any thread, and the asynchronous ones from any event loop; what
    is asked at the same time is computed together. Errors are RequestError and its kinds.
    """

    def __init__(self, model: str = "demo", **settings: _Settings) -> None:
        """Load the model. settings: as of `roost serve` (`max_total_tokens=4096`, `threads=2` …).

        Raises ModelError or ConfigError.
        """
        given = Layer({"model": model, **settings}, "{name}")
        cache = Layer({"cache_dir": str(Path.home() / ".cache" / "roost")}, "the user's cache")
        self._start(resolve([given, cache]).config, None)

    @classmethod
    def from_config(
        cls, config: ServeConfig, on_progress: Callable[[int, int], None] | None = None
    ) -> Self:
        """Load the model of resolved settings. on_progress: (bytes done, bytes in all)."""
        engine = cls.__new__(cls)
        engine._start(config, on_progress)
        return engine

    def _start(self, config: ServeConfig, on_progress: Callable[[int, int], None] | None) -> None:
        self._clock = SystemClock()
        self._is_closed = False
        tools = text_tools(config.model)
        corridor = MemoryCorridor()
        cache_dir = None if config.model.cache_dir is None else Path(config.model.cache_dir)
        around = Surroundings(clock=self._clock, cache_dir=cache_dir, on_progress=on_progress)
        try:
            self._worker: EngineLoop = build_worker(config, corridor.engine, around)
        except BaseException:
            corridor.engine.close()
            raise
        # Nobody probes a library, and whoever stops it in a debugger does not want it given up.
        settings = FrontendSettings(heartbeat_timeout_s=3600.0)
        channel = corridor.connect(_ORIGIN)
        self._frontend = Frontend(channel, _ORIGIN, tools, self._clock, settings)
        self._loop = LoopThread("roost-frontend")
        self._thread = threading.Thread(target=self._run, name="roost-engine", daemon=True)
        self._thread.start()
        atexit.register(self.close)
        try:
            self._loop.run(self._frontend.open(_OPEN_TIMEOUT_S))
        except BaseException:
            self.close()
            raise

    @property
    def facts(self) -> ModelFacts:
        """Facts of the model and of the engine."""
        return self._frontend.facts

    @overload
    def generate(
        self,
        prompt: str | None = None,
        sampling: SamplingParams | None = None,
        *,
        prompt_ids: Sequence[int] | None = None,
        messages: Messages | None = None,
        logprobs: LogprobsWanted = NO_LOGPROBS,
        timeout_s: float | None = None,
    ) -> Completion: ...

    @overload
    def generate(
        self,
        prompt: list[str],
        sampling: SamplingParams | None = None,
        *,
        logprobs: LogprobsWanted = NO_LOGPROBS,
        timeout_s: float | None = None,
    ) -> list[Completion]: ...

    def generate(
        self,
        prompt: str | list[str] | None = None,
        sampling: SamplingParams | None = None,
        *,
        prompt_ids: Sequence[int] | None = None,
        messages: Messages | None = None,
        logprobs: LogprobsWanted = NO_LOGPROBS,
        timeout_s: float | None = None,
    ) -> Completion | list[Completion]:
        """Answer exactly one of prompt, prompt_ids and messages; or a list of prompts.

        A list gives prompts · n answers, all or none; a single prompt takes n = 1 only.
        """
        if isinstance(prompt, list):
            return self.generate_many(prompt, sampling, logprobs=logprobs, timeout_s=timeout_s)
        one = prompt_of(prompt, prompt_ids, messages)
        return self._call(self._gather(single_ask(one, sampling, logprobs, timeout_s)))[0]

    def generate_many(
        self,
        prompts: Sequence[str | Sequence[int]],
        sampling: SamplingParams | None = None,
        *,
        logprobs: LogprobsWanted = NO_LOGPROBS,
        timeout_s: float | None = None,
    ) -> list[Completion]:
        """Answer texts and token lists together, n answers each, in order; all or none."""
        wanted = [TextPrompt(p) if isinstance(p, str) else TokenPrompt(tuple(p)) for p in prompts]
        return self._call(self._gather(ask_of(wanted, sampling, logprobs, timeout_s)))

    def chat(self, messages: Messages, sampling: SamplingParams | None = None) -> Completion:
        """Answer messages, by the model's chat template. The answer may fill the context."""
        return self.generate(messages=messages, sampling=sampling)

    def stream(
        self,
        prompt: str | None = None,
        sampling: SamplingParams | None = None,
        *,
        prompt_ids: Sequence[int] | None = None,
        messages: Messages | None = None,
        logprobs: LogprobsWanted = NO_LOGPROBS,
    ) -> Iterator[Piece]:
        """Pieces as they come; the last has `ended`. Leaving early cancels the rest.

        Raises RequestError for an ending that is no answer.
        """
        one = prompt_of(prompt, prompt_ids, messages)
        answers = self._call(self._frontend.submit(single_ask(one, sampling, logprobs)))
        try:
            while (piece := self._call(_next(answers))) is not None:
                yield piece
        finally:
            if not self._is_closed:
                self._call(answers.aclose())

    async def agenerate(
        self,
        prompt: str | None = None,
        sampling: SamplingParams | None = None,
        *,
        prompt_ids: Sequence[int] | None = None,
        messages: Messages | None = None,
        logprobs: LogprobsWanted = NO_LOGPROBS,
        timeout_s: float | None = None,
    ) -> Completion:
        """As `generate`, from an event loop. Cancelling the call cancels the request."""
        one = prompt_of(prompt, prompt_ids, messages)
        return (await self._acall(self._gather(single_ask(one, sampling, logprobs, timeout_s))))[0]

    async def astream(
        self,
        prompt: str | None = None,
        sampling: SamplingParams | None = None,
        *,
        prompt_ids: Sequence[int] | None = None,
        messages: Messages | None = None,
        logprobs: LogprobsWanted = NO_LOGPROBS,
    ) -> AsyncIterator[Piece]:
        """As `stream`, from an event loop."""
        one = prompt_of(prompt, prompt_ids, messages)
        answers = await self._acall(self._frontend.submit(single_ask(one, sampling, logprobs)))
        try:
            while (piece := await self._acall(_next(answers))) is not None:
                yield piece
        finally:
            if not self._is_closed:
                await self._acall(answers.aclose())

    def encode(self, text: str, *, add_special: bool = True) -> list[int]:
        """Token ids of `text`."""
        return self._call(self._frontend.text.encode(text, add_special=add_special))

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        """The text of `ids`."""
        return self._frontend.text.decode(tuple(ids), skip_special=skip_special)

    def close(self) -> None:
        """End what runs, and leave no thread. Closing twice is harmless."""
        if self._is_closed:
            return
        self._is_closed = True
        atexit.unregister(self.close)
        # Its Goodbye wakes the engine, which then finds that it is to stop.
        self._worker.stop()
        self._loop.run(self._frontend.close())
        self._thread.join()
        self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _run(self) -> None:
        """The engine's thread."""
        try:
            self._worker.run()
        except Exception:  # noqa: BLE001  whatever it was, nobody may wait for ever
            _log.exception("the engine failed")
            self._loop.loop.call_soon_threadsafe(self._frontend.engine_lost, "The engine failed.")

    def _call(self, work: Coroutine[object, object, _Result]) -> _Result:
        self._check_open(work)
        return self._loop.run(work)

    async def _acall(self, work: Coroutine[object, object, _Result]) -> _Result:
        self._check_open(work)
        return await asyncio.wrap_future(self._loop.start(work))

    def _check_open(self, work: Coroutine[object, object, _Result]) -> None:
        if self._is_closed:
            work.close()
            raise EngineFault("The engine is closed.")

    async def _gather(self, ask: Ask) -> list[Completion]:
        """Every answer, whole. Raises RequestError if one of them ends as none."""
        answers = await self._frontend.submit(ask)
        pieces: list[list[Piece]] = [[] for _ in answers.heads]
        try:
            while (piece := await _next(answers)) is not None:
                pieces[piece.index].append(piece)
        finally:
            await answers.aclose()
        now_s = self._clock.now_s()
        return [
            completion_of(head, found, now_s)
            for head, found in zip(answers.heads, pieces, strict=True)
        ]


async def _next(answers: Answers) -> Piece | None:
    """The next piece; None after the last. Raises RequestError for an ending that is no answer."""
    piece = await anext(answers, None)
    if piece is not None and piece.ended is not None:
        error = refusal_of(piece.ended, answers.heads[piece.index].rid)
        if error is not None:
            raise error
    return piece
