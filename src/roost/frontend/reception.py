"""The reception: takes asks in, prepares them off the event loop, and sends them on."""

import asyncio
import math
import secrets
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from roost.core.clock import Clock
from roost.core.errors import EngineFault, QueueFull, RequestError, ShuttingDown
from roost.core.events import Ended
from roost.core.outcome import Outcome
from roost.core.params import SamplingParams
from roost.core.refusal import ending_of, refusal_of
from roost.core.request import HEALTH_PREFIX, Envelope, GenerateRequest, Origin, RequestId
from roost.frontend.answers import Answers
from roost.frontend.ask import Ask, TokenPrompt, Wish
from roost.frontend.core import FrontCore
from roost.frontend.doorway import Doorway
from roost.frontend.intake import Intake, Prepared, TextTools
from roost.frontend.ledger import Life
from roost.frontend.naming import AnswerName, name_answers
from roost.frontend.starting import prepared_streams, unprepared_streams
from roost.frontend.text_desk import TextDesk
from roost.wire.messages import ModelFacts

# JSON numbers are exact in every client up to here, so a drawn seed can be handed back.
_SEED_BITS: Final = 53
# About a tenth of a millisecond's work; to make an answer's request is that of so many ids.
_QUICK_IDS: Final = 4096
_IDS_AN_ANSWER: Final = 256


class Reception:
    """Every ask that comes in leaves by here: as answers, or as an error, all of it or none.

    text: the model's text side. is_open: cleared when no new ask may come in; health checks may.
    """

    def __init__(
        self,
        core: FrontCore,
        origin: Origin,
        tools: TextTools,
        clock: Clock,
        *,
        request_timeout_s: float,
        num_threads: int,
        is_alive: Callable[[], bool],
    ) -> None:
        """is_alive: whether the engine is heard. num_threads: that tokenise and render."""
        self._core = core
        self._board = core.board
        self._origin = origin
        self._tools = tools
        self._clock = clock
        self._request_timeout_s = request_timeout_s
        self._is_alive = is_alive
        self._executor = ThreadPoolExecutor(num_threads, thread_name_prefix="roost-intake")
        self._intake: Intake | None = None
        self.text = TextDesk(tools, self._executor, self._checked_intake)
        self.is_open = True
        self._is_closed = False

    def know(self, facts: ModelFacts) -> None:
        """Take in what the engine says of its model; nothing can be asked before."""
        self._intake = Intake(self._tools, facts, self._clock, _draw_seed)

    async def submit(self, ask: Ask) -> Answers:
        """Returns when the engine has accepted every answer's request.

        Raises RequestError (and its kinds) for what is known before the first byte: nothing of
        the ask then runs. Cancelling this call cancels the ask.
        """
        arrival_s = self._clock.now_s()
        try:
            deadline_s = self._admit(ask, arrival_s)
            names = name_answers(ask, draw_name)
        except RequestError as error:
            nobody = AnswerName(RequestId(draw_name()), "", 0, 0)
            envelope = self._envelope(nobody, ask, arrival_s, math.inf)
            self._board.refused(envelope, ending_of(error))
            raise
        envelopes = [self._envelope(name, ask, arrival_s, deadline_s) for name in names]
        if not self._core.has_room(len(envelopes)):
            full = QueueFull("The request queue is full.")
            for envelope in envelopes:
                self._board.refused(envelope, ending_of(full))
            raise full
        return await self._submit(ask, names, envelopes)

    def _admit(self, ask: Ask, arrival_s: float, *, is_probe: bool = False) -> float:
        """The deadline of an ask that may come in. Raises RequestError for one that may not."""
        if self._is_closed or not (self.is_open or is_probe):
            raise ShuttingDown("The server is shutting down.")
        if is_probe:
            return arrival_s + (math.inf if ask.timeout_s is None else ask.timeout_s)
        if not self._is_alive():
            raise EngineFault("The engine does not answer.")
        timeout_s = self._request_timeout_s if ask.timeout_s is None else ask.timeout_s
        if not timeout_s > 0:
            raise RequestError(f"timeout must be over 0 s, got {timeout_s:g}.", param="timeout")
        return arrival_s + timeout_s

    def _envelope(
        self, name: AnswerName, ask: Ask, arrival_s: float, deadline_s: float
    ) -> Envelope:
        return Envelope(
            rid=name.rid,
            origin=self._origin,
            serial=self._core.next_serial(),
            arrival_s=arrival_s,
            deadline_s=deadline_s,
            priority=ask.priority,
            trace=ask.trace,
            group=name.group,
            tenant=ask.tenant,
        )

    async def _submit(
        self, ask: Ask, names: tuple[AnswerName, ...], envelopes: list[Envelope]
    ) -> Answers:
        """All or none: whatever goes wrong on the way, everything that was opened ends."""
        lives: list[Life] = []
        doorway = Doorway(len(envelopes))
        try:
            for index, envelope in enumerate(envelopes):
                lives.append(self._open(envelope, doorway, index))
            prepared = await self._prepare(ask, names, doorway)
            answers = self._answers(ask, names, prepared, lives)
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

    def _open(self, envelope: Envelope, doorway: Doorway, index: int) -> Life:
        try:
            return self._board.open(envelope, doorway, index)
        except RequestError as error:
            self._board.refused(envelope, ending_of(error))
            raise

    async def _prepare(
        self, ask: Ask, names: tuple[AnswerName, ...], doorway: Doorway
    ) -> list[Prepared] | None:
        """The requests of an ask. None: they ended before that, so that nobody waits for it."""
        intake = self._checked_intake()
        if _is_quick(ask):
            return intake.prepare(ask, names)
        loop = asyncio.get_running_loop()
        work = loop.run_in_executor(self._executor, intake.prepare, ask, names)
        both: set[asyncio.Future[list[Prepared]] | asyncio.Future[None]] = {work, doorway.shut}
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            return None if doorway.shut.done() else work.result()
        finally:
            # What a thread has begun it finishes, for nobody.
            if not work.cancel():
                work.exception()

    def _answers(
        self,
        ask: Ask,
        names: tuple[AnswerName, ...],
        prepared: list[Prepared] | None,
        lives: list[Life],
    ) -> Answers:
        """The answers of an ask whose requests are sent off here, those that still live.

        Raises RequestError when one of them has been refused meanwhile.
        """
        for life in lives:
            refusal = None if life.ended is None else refusal_of(life.ended, life.envelope.rid)
            if refusal is not None:
                raise refusal
        arrival_s = lives[0].envelope.arrival_s
        if prepared is None:
            ended = unprepared_streams(ask, names, self._tools.tokenizer, arrival_s)
            answers = Answers(ended, self._board.leave)
            for index, life in enumerate(lives):
                assert life.ended is not None, "nothing was prepared for a request that lives"
                answers.deliver(index, life.ended, self._clock.now_s())
            return answers
        answers = Answers(prepared_streams(prepared, arrival_s), self._board.leave)
        for index, (one, life) in enumerate(zip(prepared, lives, strict=True)):
            request = GenerateRequest(
                life.envelope,
                one.prompt_ids,
                one.sampling,
                one.logprobs,
                one.turn,
                one.namespace,
            )
            self._board.send(life, request, answers, index)
        return answers

    async def generate_one(self, timeout_s: float) -> None:
        """Ask for one token, as a health check: no limit of the queue stops it."""
        arrival_s = self._clock.now_s()
        wish = Wish(
            TokenPrompt((self._tools.tokenizer.bos_id or 0,)),
            SamplingParams(max_new_tokens=1, temperature=0.0, ignore_eos=True),
        )
        ask = Ask((wish,), timeout_s=timeout_s)
        deadline_s = self._admit(ask, arrival_s, is_probe=True)
        name = AnswerName(RequestId(f"{HEALTH_PREFIX}_{draw_name()}"), "", 0, 0)
        envelope = self._envelope(name, ask, arrival_s, deadline_s)
        answers = await self._submit(ask, (name,), [envelope])
        try:
            async for _ in answers:
                pass
        finally:
            answers.close()

    def close(self) -> None:
        """Take nothing more in. Waits for a prompt in the middle of being tokenised, at most."""
        self.is_open, self._is_closed = False, True
        self._executor.shutdown(cancel_futures=True)

    def _checked_intake(self) -> Intake:
        assert self._intake is not None, "the frontend is not open"
        return self._intake


def _is_quick(ask: Ask) -> bool:
    """Whether an ask is prepared in less time than it takes to hand it to a thread and back: ids,
    not too many, which need only be looked at.
    """
    num_ids = 0
    for wish in ask.wishes:
        if not isinstance(wish.prompt, TokenPrompt) or wish.sampling.stop_regex:
            return False
        num_ids += len(wish.prompt.ids) + _IDS_AN_ANSWER * max(wish.sampling.n, 1)
    return num_ids <= _QUICK_IDS


def _unended(lives: list[Life]) -> list[RequestId]:
    """Those that still live; another request may go by the rid of one that ended."""
    return [life.envelope.rid for life in lives if life.ended is None]


def draw_name() -> str:
    """A name that nobody else has."""
    return secrets.token_hex(16)


def _draw_seed() -> int:
    return secrets.randbits(_SEED_BITS)
