"""The frontend: one asyncio object a process, between the API layer and the engine's corridor."""

import asyncio
from collections.abc import Callable
from typing import Final

from roost.core.calls import Abort, Call, FlushCache
from roost.core.clock import Clock
from roost.core.errors import DeadlinePassed, EngineFault
from roost.core.events import Ended
from roost.core.outcome import Outcome
from roost.core.refusal import refusal_named
from roost.core.request import Origin, RequestId
from roost.frontend.answers import Answers
from roost.frontend.ask import Ask
from roost.frontend.core import FrontCore
from roost.frontend.corridor import Corridor
from roost.frontend.health import Health
from roost.frontend.intake import TextTools
from roost.frontend.mail import Mail
from roost.frontend.reception import Reception, draw_name
from roost.frontend.settings import FrontendSettings
from roost.observe import EndingLog, EngineFigures, Meter
from roost.wire import WorkerSide
from roost.wire.messages import ControlDone, Goodbye, Load, ModelFacts, ToWorker

# How often the ledger is reaped and the corridor looked at without being rung.
_TICK_S: Final = 0.5
# JSON numbers are exact in every client up to here, so a drawn seed can be handed back.
_SEED_BITS: Final = 53


def _ignore(level: str) -> None:
    """For a process whose log is none of the server's business."""


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
        *,
        meter: Meter | None = None,
        on_log_level: Callable[[str], None] = _ignore,
    ) -> None:
        """meter: where requests are counted; None: its own. on_log_level: sets the least level
        that this process logs.
        """
        self._origin = origin
        self._clock = clock
        self._settings = FrontendSettings() if settings is None else settings
        self._meter = Meter() if meter is None else meter
        self._channel = channel
        self._corridor = Corridor(channel, self._take)
        self._core = FrontCore(
            self._corridor.send,
            origin,
            clock,
            self._settings,
            meter=self._meter,
            endings=EndingLog(),
            on_log_level=on_log_level,
        )
        self._board = self._core.board
        self._engine = self._core.engine
        self._mail = Mail(self._core, self._settings.notify_batch_size)
        self._is_mail_due = False
        self._reception = Reception(
            self._core,
            origin,
            tools,
            clock,
            request_timeout_s=self._settings.request_timeout_s,
            num_threads=self._settings.num_intake_threads,
            is_alive=self._hears_engine,
        )
        self.text = self._reception.text
        self.health: Health = Health(
            self._engine,
            clock,
            self._corridor.pump,
            self._reception.generate_one,
            is_taking=lambda: self._reception.is_open,
            timeout_s=self._settings.heartbeat_timeout_s,
        )
        self._known_facts: ModelFacts | None = None
        self._welcome = asyncio.Event()
        self._ticker: asyncio.Task[None] | None = None
        self._is_closed = False

    async def open(self, timeout_s: float = 60.0) -> None:
        """Say Hello and wait for the engine's Welcome. Raises EngineFault when none comes."""
        self._corridor.open()
        self._core.hello()
        self._ticker = asyncio.create_task(self._tick())
        try:
            async with asyncio.timeout(timeout_s):
                await self._welcome.wait()
        except TimeoutError:
            raise EngineFault(f"The engine did not answer in {timeout_s:g} s.") from None

    async def submit(self, ask: Ask) -> Answers:
        """Returns when the engine has accepted every answer's request.

        Raises RequestError (and its kinds) for what is known before the first byte: nothing of
        the ask then runs. Cancelling this call cancels the ask.
        """
        return await self._reception.submit(ask)

    async def abort(self, name: str | None, message: str = "") -> ControlDone:
        """End the answer of that rid, or every answer of the call named so, or everything (None),
        whichever front took it in, with CLIENT_CANCELLED. Its client reads `message`.

        The answer's count says how many requests that was. Raises as `call`.
        """
        return await self.call(Abort(None if name is None else RequestId(name), message))

    async def call(self, call: Call) -> ControlDone:
        """A call on the whole server; returns when it has been carried out.

        Raises RequestError when the engine refuses it, DeadlinePassed when the engine does not
        answer in time, and EngineFault when it is dead.
        """
        if not self.health.is_alive():
            raise EngineFault("The engine does not answer.")
        timeout_s = self._settings.control_timeout_s
        if isinstance(call, FlushCache):
            timeout_s += call.timeout_s or 0.0
        call_id = draw_name()
        future: asyncio.Future[ControlDone] = asyncio.get_running_loop().create_future()
        self._core.call(call_id, call, lambda done: _settle(future, done))
        try:
            async with asyncio.timeout(timeout_s):
                done = await future
        except TimeoutError:
            what = type(call).__name__
            raise DeadlinePassed(f"The engine did not answer {what} in {timeout_s:g} s.") from None
        finally:
            self._core.forget(call_id)
        if not done.is_ok:
            raise refusal_named(done.message, done.code, done.status)
        return done

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
        return self._core.ledger.live()

    def metrics(self) -> bytes:
        """Metrics in Prometheus' text format: of all processes that share the meter's counts."""
        self._report()
        return self._meter.exposition()

    def drain(self) -> None:
        """Refuse new asks with ShuttingDown; let the running ones go on."""
        self._reception.is_open = False

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
        self._reception.is_open = False
        if self._ticker is not None:
            self._ticker.cancel()
            await asyncio.gather(self._ticker, return_exceptions=True)
        await self.health.close()
        self.end_all(Outcome.SHUTTING_DOWN, "The server is shutting down.")
        self._corridor.send(Goodbye(self._origin))
        self._corridor.close()
        self._reception.close()

    def _report(self) -> None:
        """Tell the meter how the engine fares."""
        load = self._engine.load
        self._meter.engine(
            EngineFigures(
                is_alive=self.health.is_alive(),
                num_running=load.num_running,
                num_waiting=load.num_waiting,
                num_used_tokens=load.num_used_tokens,
                num_cached_tokens=load.num_cached_tokens,
                num_kv_tokens=load.num_kv_tokens,
                num_steps=load.num_steps,
                num_drafts=load.num_drafts,
                num_right_drafts=load.num_right_drafts,
                num_gone=load.num_gone,
                num_undelivered=load.num_undelivered,
                num_disk_tokens=load.num_disk_tokens,
                disk_read_tokens=load.disk_read_tokens_total,
                num_malformed=self._channel.num_malformed,
            ),
        )

    def _hears_engine(self) -> bool:
        return self.health.is_alive()

    def _take(self, messages: list[ToWorker]) -> None:
        self._mail.put(messages)
        if not self._is_mail_due:
            self._hear_some()

    def _hear_some(self) -> None:
        """Hear one helping of what has arrived, and leave the rest for the loop's next turn."""
        self._is_mail_due = False
        if self._is_closed:
            return
        if self._mail.hear_some():
            self.health.token_came()
        facts = self._engine.facts
        if facts is not None and facts is not self._known_facts:
            self._known_facts = facts
            self._reception.know(facts)
            self._welcome.set()
        if not self._mail.is_empty:
            self._is_mail_due = True
            asyncio.get_running_loop().call_soon(self._hear_some)

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(_TICK_S)
            self._corridor.pump()
            self._core.tick()
            self._report()


def _settle(future: asyncio.Future[ControlDone], done: ControlDone) -> None:
    """Its caller may have left a moment ago."""
    if not future.done():
        future.set_result(done)
