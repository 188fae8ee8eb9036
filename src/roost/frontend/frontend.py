"""The frontend: one asyncio object a process, between the API layer and the engine's corridor."""

import asyncio
import math
import secrets
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar, assert_never

from roost.core.clock import Clock
from roost.core.errors import EngineFault, RequestError, ShuttingDown
from roost.core.events import Ended
from roost.core.outcome import Outcome
from roost.core.params import SamplingParams
from roost.core.request import HEALTH_PREFIX, Envelope, GenerateRequest, Origin, RequestId
from roost.frontend.answers import Answers
from roost.frontend.ask import Ask, TokenPrompt, Wish
from roost.frontend.board import Switchboard
from roost.frontend.control import ControlCalls
from roost.frontend.corridor import Corridor
from roost.frontend.engine_view import EngineView
from roost.frontend.health import Health
from roost.frontend.intake import Intake, Prepared, TextTools
from roost.frontend.ledger import Ledger, Life
from roost.frontend.naming import AnswerName, name_answers
from roost.frontend.piece import AnswerHead
from roost.frontend.refusal import ending_of
from roost.frontend.settings import FrontendSettings
from roost.frontend.stream import AnswerStream
from roost.frontend.text_desk import TextDesk
from roost.observe import EndingLog, EngineFigures, Meter
from roost.wire import WorkerSide
from roost.wire.messages import (
    ControlDone,
    Goodbye,
    Heartbeat,
    Hello,
    Load,
    ModelFacts,
    Outputs,
    ToWorker,
    Welcome,
)

# How often the ledger is reaped and the corridor looked at without being rung.
_TICK_S: Final = 0.5
# An engine silent for so many heartbeat timeouts is given up: its requests end as its fault.
_GIVEN_UP_AFTER: Final = 3
# JSON numbers are exact in every client up to here, so a drawn seed can be handed back.
_SEED_BITS: Final = 53

_Result = TypeVar("_Result")


class Frontend:
    """Made anywhere, used on one event loop from `open` to `close`.

    text: the model's text side. health: what probes ask.
    """

    def __init__(
        self,
        channel: WorkerSide,
        origin: Origin,
        tools: TextTools,
        clock: Clock,
        settings: FrontendSettings | None = None,
    ) -> None:
        self._origin = origin
        self._tools = tools
        self._clock = clock
        self._settings = FrontendSettings() if settings is None else settings
        self._engine = EngineView()
        self._ledger = Ledger()
        self._meter = Meter()
        self._channel = channel
        self._corridor = Corridor(channel, self._take)
        self._board = Switchboard(
            self._corridor.send, clock, self._ledger, self._meter, EndingLog()
        )
        self._calls = ControlCalls(self._corridor.send, origin, _draw_name)
        self.health = Health(
            self._engine,
            clock,
            self._corridor.pump,
            self._generate_one,
            timeout_s=self._settings.heartbeat_timeout_s,
        )
        self._executor = ThreadPoolExecutor(
            self._settings.num_intake_threads, thread_name_prefix="roost-intake"
        )
        self._intake: Intake | None = None
        self.text = TextDesk(tools, self._executor, self._checked_intake)
        self._welcome = asyncio.Event()
        self._ticker: asyncio.Task[None] | None = None
        self._is_closed = False

    async def open(self, timeout_s: float = 60.0) -> None:
        """Say Hello and wait for the engine's Welcome. Raises EngineFault when none comes."""
        self._corridor.open()
        self._corridor.send(Hello(self._origin))
        try:
            async with asyncio.timeout(timeout_s):
                await self._welcome.wait()
        except TimeoutError:
            raise EngineFault(f"The engine did not answer in {timeout_s:g} s.") from None
        self._ticker = asyncio.create_task(self._tick())

    async def submit(self, ask: Ask) -> Answers:
        """Returns when the engine has accepted every answer's request.

        Raises RequestError (and its kinds) for what is known before the first byte: nothing of
        the ask then runs. Cancelling this call cancels the ask.
        """
        arrival_s = self._clock.now_s()
        try:
            deadline_s = self._admit(ask, arrival_s)
            names = name_answers(ask, _draw_name)
        except RequestError as error:
            nobody = AnswerName(RequestId(_draw_name()), "", 0, 0)
            envelope = self._envelope(nobody, ask, arrival_s, math.inf)
            self._board.refused(envelope, ending_of(error))
            raise
        envelopes = [self._envelope(name, ask, arrival_s, deadline_s) for name in names]
        return await self._submit(ask, names, envelopes)

    def abort(self, rid: str) -> bool:
        """End that answer, or every answer of the call named so, with CLIENT_CANCELLED.

        False: this front does not know it; the engine is told anyway, as another front may.
        """
        members = self._ledger.members(rid)
        self._board.cancel(members or (RequestId(rid),))
        return bool(members)

    async def control(self, verb: str, argument: str = "") -> ControlDone:
        """A call on the whole engine, such as "abort_all", which ends everything that lives,
        whoever asked for it, with CLIENT_CANCELLED.

        Raises DeadlinePassed when the engine does not answer in `control_timeout_s`.
        """
        if verb == "abort_all":
            # What the engine has not heard of yet.
            self._board.cancel([rid for rid in self.live if not self._is_sent(rid)])
        return await self._calls.call(verb, argument, self._settings.control_timeout_s)

    @property
    def facts(self) -> ModelFacts:
        """Facts of the engine and its model. Known once `open` has returned."""
        assert self._engine.facts is not None, "the frontend is not open"
        return self._engine.facts

    @property
    def load(self) -> Load:
        """How busy the engine said it was, a second ago at most while it is alive."""
        return self._engine.load

    @property
    def live(self) -> tuple[RequestId, ...]:
        """The requests of this process that have not ended."""
        return self._ledger.live()

    def metrics(self) -> bytes:
        """Metrics of this process, in Prometheus' text format."""
        is_alive = self.health.is_alive()
        load = self._engine.load
        self._meter.engine(
            EngineFigures(
                is_alive=is_alive,
                num_running=load.num_running,
                num_waiting=load.num_waiting,
                num_used_tokens=load.num_used_tokens,
                num_kv_tokens=load.num_kv_tokens,
                num_steps=load.num_steps,
                num_malformed=self._channel.num_malformed,
            ),
        )
        return self._meter.exposition()

    def drain(self) -> None:
        """Refuse new asks with ShuttingDown; let the running ones go on."""
        self.health.is_taking = False

    async def wait_idle(self, timeout_s: float) -> bool:
        """Wait until nothing lives; False when the time is up before."""
        end_s = self._clock.now_s() + timeout_s
        while self.live:
            if self._clock.now_s() >= end_s:
                return False
            await asyncio.sleep(0.02)
        return True

    def end_all(self, outcome: Outcome, message: str) -> None:
        """End everything that lives, now and from here."""
        self._board.end(self.live, Ended(outcome, message=message))

    def engine_lost(self, message: str) -> None:
        """Somebody saw the engine die: what it held has ended, and nothing new can begin."""
        self._engine.is_lost = True
        self.end_all(Outcome.ENGINE_FAULT, message)

    async def close(self) -> None:
        """End what lives as SHUTTING_DOWN, say Goodbye, and leave nothing behind."""
        if self._is_closed:
            return
        self._is_closed = True
        self.health.is_taking = False
        if self._ticker is not None:
            self._ticker.cancel()
            await asyncio.gather(self._ticker, return_exceptions=True)
        await self.health.close()
        self.end_all(Outcome.SHUTTING_DOWN, "The server is shutting down.")
        self._corridor.send(Goodbye(self._origin))
        self._corridor.close()
        # Waits for a prompt in the middle of being tokenised, at most.
        self._executor.shutdown(cancel_futures=True)

    def _admit(self, ask: Ask, arrival_s: float, *, is_probe: bool = False) -> float:
        """The deadline of an ask that may come in. Raises RequestError for one that may not."""
        if self._is_closed or (not self.health.is_taking and not is_probe):
            raise ShuttingDown("The server is shutting down.")
        if not self.health.is_alive() and not is_probe:
            raise EngineFault("The engine does not answer.")
        timeout_s = self._settings.request_timeout_s if ask.timeout_s is None else ask.timeout_s
        if not timeout_s > 0:
            raise RequestError(f"timeout must be over 0 s, got {timeout_s:g}.", param="timeout")
        return arrival_s + timeout_s

    def _envelope(
        self, name: AnswerName, ask: Ask, arrival_s: float, deadline_s: float
    ) -> Envelope:
        return Envelope(
            rid=name.rid,
            origin=self._origin,
            arrival_s=arrival_s,
            deadline_s=deadline_s,
            priority=ask.priority,
            trace=ask.trace,
            group=name.group,
        )

    async def _submit(
        self, ask: Ask, names: tuple[AnswerName, ...], envelopes: list[Envelope]
    ) -> Answers:
        """All or none: whatever goes wrong on the way, everything that was opened ends."""
        lives: list[Life] = []
        try:
            for envelope in envelopes:
                lives.append(self._open(envelope))
            intake = self._checked_intake()
            prepared = await self._off_loop(lambda: intake.prepare(ask, names))
            answers = self._answers(prepared, lives)
            await answers.accepted()
        except RequestError as error:
            self._board.end(_unended(lives), ending_of(error))
            raise
        except asyncio.CancelledError:
            self._board.leave(_unended(lives))
            raise
        except BaseException as bug:
            fault = Ended(Outcome.ENGINE_FAULT, message=type(bug).__name__)
            self._board.end(_unended(lives), fault)
            raise
        return answers

    def _open(self, envelope: Envelope) -> Life:
        try:
            return self._board.open(envelope)
        except RequestError as error:
            self._board.refused(envelope, ending_of(error))
            raise

    def _answers(self, prepared: list[Prepared], lives: list[Life]) -> Answers:
        """The answers of an ask whose requests are sent off here."""
        streams = [
            AnswerStream(
                AnswerHead(
                    index=index,
                    prompt_index=one.name.prompt_index,
                    rid=one.name.rid,
                    seed=one.sampling.seed,
                    prompt_ids=one.prompt_ids,
                    prompt_text=one.prompt_text,
                    max_new_tokens=one.sampling.max_new_tokens,
                    arrival_s=life.envelope.arrival_s,
                ),
                one.text,
                no_stop_trim=one.sampling.no_stop_trim,
            )
            for index, (one, life) in enumerate(zip(prepared, lives, strict=True))
        ]
        answers = Answers(streams, self._board.leave)
        for index, (one, life) in enumerate(zip(prepared, lives, strict=True)):
            request = GenerateRequest(life.envelope, one.prompt_ids, one.sampling, one.logprobs)
            self._board.send(life, request, answers, index)
        return answers

    async def _generate_one(self, timeout_s: float) -> None:
        """Ask for one token, as a health check: no limit of the queue stops it."""
        arrival_s = self._clock.now_s()
        wish = Wish(
            TokenPrompt((self._tools.tokenizer.bos_id or 0,)),
            SamplingParams(max_new_tokens=1, temperature=0.0, ignore_eos=True),
        )
        ask = Ask((wish,), timeout_s=timeout_s)
        deadline_s = self._admit(ask, arrival_s, is_probe=True)
        name = AnswerName(RequestId(f"{HEALTH_PREFIX}_{_draw_name()}"), "", 0, 0)
        envelope = self._envelope(name, ask, arrival_s, deadline_s)
        answers = await self._submit(ask, (name,), [envelope])
        try:
            async for _ in answers:
                pass
        finally:
            answers.close()

    def _take(self, messages: list[ToWorker]) -> None:
        now_s = self._clock.now_s()
        for message in messages:
            match message:
                case Outputs(outputs=outputs):
                    self._engine.heard_s = max(self._engine.heard_s, now_s)
                    if self._board.see(outputs):
                        self.health.token_came()
                case Heartbeat():
                    self._engine.beat(message)
                case Welcome():
                    self._welcomed(message, now_s)
                case ControlDone():
                    self._calls.done(message)
                case _:
                    assert_never(message)

    def _welcomed(self, welcome: Welcome, now_s: float) -> None:
        if self._engine.welcome(welcome, now_s):
            lost = self._ledger.engine_changed()
            self._board.end(lost, Ended(Outcome.ENGINE_FAULT, message="The engine was restarted."))
        self._intake = Intake(self._tools, welcome.facts, self._clock, _draw_seed)
        self._welcome.set()

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(_TICK_S)
            self._corridor.pump()
            self._board.reap()
            silence_s = self._engine.silence_s(self._clock.now_s())
            if silence_s > _GIVEN_UP_AFTER * self._settings.heartbeat_timeout_s:
                self.end_all(Outcome.ENGINE_FAULT, "The engine does not answer.")

    def _is_sent(self, rid: RequestId) -> bool:
        life = self._ledger.life(rid)
        return life is not None and life.is_sent

    def _checked_intake(self) -> Intake:
        assert self._intake is not None, "the frontend is not open"
        return self._intake

    async def _off_loop(self, work: Callable[[], _Result]) -> _Result:
        return await asyncio.get_running_loop().run_in_executor(self._executor, work)


def _unended(lives: list[Life]) -> list[RequestId]:
    """Those that still live; another request may go by the rid of one that ended."""
    return [life.envelope.rid for life in lives if life.ended is None]


def _draw_name() -> str:
    return secrets.token_hex(16)


def _draw_seed() -> int:
    return secrets.randbits(_SEED_BITS)
