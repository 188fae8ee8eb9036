"""A whole engine on a real model, driven step by step, and the judge of what it answers: the same
request has the same bits, whatever else goes on.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from roost.core.clock import ManualClock
from roost.core.config import EngineConfig, ModelConfig, ServeConfig
from roost.core.events import Accepted, Delta, Ended, Event, Started, TokenLogprob
from roost.core.outcome import Outcome
from roost.core.request import GenerateRequest, Origin, RequestId
from roost.runner import FreeMemory
from roost.wire import MemoryCorridor
from roost.wire.messages import Cancel, Outputs
from roost.worker import Surroundings, build_worker

HERE = Origin(0, 1)
CONTEXT_TOKENS = 1024
# What every engine starts from; each test says what it has otherwise.
_PLAIN = {"max_total_tokens": 2048}
_ALONE: dict[str, object] = {"threads": 1, "prefix_cache": "off", "speculate": "off"}


@dataclass
class Answer:
    """All that a client can see of a request, but how it is cut into deltas."""

    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprob] = field(default_factory=list)
    num_cached_tokens: int = -1
    ended: Ended | None = None

    def hear(self, event: Event) -> None:
        match event:
            case Accepted():
                pass
            case Started(num_cached_tokens):
                self.num_cached_tokens = num_cached_tokens
            case Delta(first, token_ids, logprobs, prompt_logprobs):
                assert first == len(self.tokens), "a delta is missing, or comes twice"
                assert not (prompt_logprobs and self.prompt_logprobs), "prompt logprobs come twice"
                self.tokens += token_ids
                self.logprobs += logprobs
                self.prompt_logprobs += prompt_logprobs
            case Ended():
                assert self.ended is None, "two endings"
                self.ended = event

    @property
    def num_scored(self) -> int:
        return len(self.logprobs) + len(self.prompt_logprobs)

    @property
    def ending(self) -> tuple[Outcome, int | str | None, int]:
        assert self.ended is not None, "no ending"
        return self.ended.outcome, self.ended.matched, self.ended.text_bytes


class Bench:
    """One engine. What it is asked and what it answered, by rid. growth_tokens: of its limits, so
    that few pages last for few requests.
    """

    def __init__(
        self, model: Path, cache_dir: Path, settings: dict[str, object], growth_tokens: int = 128
    ) -> None:
        config = ServeConfig(
            model=ModelConfig(model=str(model), context_length=CONTEXT_TOKENS),
            engine=msgspec.convert(_PLAIN | settings, EngineConfig),
        )
        corridor = MemoryCorridor()
        self.clock = ManualClock()
        around = Surroundings(
            clock=self.clock,
            cache_dir=cache_dir,
            measure_memory=lambda: FreeMemory(1 << 30, "what a test gives"),
        )
        self.loop = build_worker(config, corridor.engine, around)
        scheduler = self.loop._scheduler
        scheduler._limits = dataclasses.replace(scheduler._limits, growth_tokens=growth_tokens)
        self._worker = corridor.connect(HERE)
        self.asked: dict[RequestId, GenerateRequest] = {}
        self.answers: dict[RequestId, Answer] = {}
        self.num_retract_calls = 0

    def chunk(self, num_tokens: int) -> None:
        """From the next step on: one request at a time, so many tokens a step."""
        scheduler = self.loop._scheduler
        scheduler._limits = dataclasses.replace(
            scheduler._limits, max_step_tokens=num_tokens, max_running=1
        )

    def ask(self, request: GenerateRequest, rid: str, serial: int) -> None:
        """A request of its own, of the same content."""
        envelope = msgspec.structs.replace(
            request.envelope, rid=RequestId(rid), serial=serial, origin=HERE
        )
        mine = msgspec.structs.replace(request, envelope=envelope)
        self.asked[mine.envelope.rid] = mine
        self.answers[mine.envelope.rid] = Answer()
        self._worker.send(mine)

    def cancel(self, rid: RequestId) -> None:
        serial = self.asked[rid].envelope.serial
        self._worker.send(Cancel(HERE, serial, is_disconnect=False))

    def retract_all(self) -> None:
        """Whatever runs waits again."""
        self.num_retract_calls += 1
        self.loop._scheduler.retract_all(self.clock.now_s())

    def flush(self) -> None:
        self.loop._scheduler.flush()

    def step(self) -> bool:
        """False: there was nothing to compute."""
        has_computed = self.loop.step()
        self.loop._scheduler.check()
        for message in self._worker.receive():
            if isinstance(message, Outputs):
                for output in message.outputs:
                    self.answers[output.rid].hear(output.event)
        return has_computed

    def finish(self) -> None:
        """Until everything is answered."""
        while self.step():
            pass
        unanswered = [rid for rid, answer in self.answers.items() if answer.ended is None]
        assert not unanswered, f"without an ending: {unanswered}"

    def answer(self, request: GenerateRequest) -> Answer:
        """Of one request, beside nothing else."""
        number = len(self.asked) + 1
        self.ask(request, f"one-{number}", number)
        self.finish()
        return self.answers[RequestId(f"one-{number}")]

    @property
    def num_retractions(self) -> int:
        ended = [answer.ended for answer in self.answers.values()]
        return sum(one.usage.num_retractions for one in ended if one is not None)

    @property
    def num_right_drafts(self) -> int:
        """Tokens that were guessed, and right."""
        return self.loop._scheduler.load().num_right_drafts

    @property
    def num_cached_tokens(self) -> int:
        """Tokens of prompts that were not computed again."""
        return sum(max(answer.num_cached_tokens, 0) for answer in self.answers.values())


class Judge:
    """Knows what a request is answered alone, on one thread, with nothing kept from before.

    num_compared: tokens, each with its logprobs, that were compared so far.
    """

    def __init__(self, model: Path, cache_dir: Path) -> None:
        self.model = model
        self.cache_dir = cache_dir
        self.num_compared = 0
        self._alone: dict[str, Bench] = {}
        self._known: dict[tuple[str, bytes], Answer] = {}

    def close(self) -> None:
        for bench in self._alone.values():
            bench.loop.close()

    def bench(self, settings: dict[str, object], growth_tokens: int = 128) -> Bench:
        return Bench(self.model, self.cache_dir, settings, growth_tokens)

    def alone(self, request: GenerateRequest, kv_dtype: str = "bf16") -> Answer:
        key = (
            kv_dtype,
            msgspec.msgpack.encode((request.prompt_ids, request.sampling, request.logprobs)),
        )
        if key not in self._known:
            if kv_dtype not in self._alone:
                self._alone[kv_dtype] = self.bench({**_ALONE, "kv_dtype": kv_dtype})
            answer = self._alone[kv_dtype].answer(request)
            assert answer.num_cached_tokens == 0
            self._known[key] = answer
        return self._known[key]

    def compare(self, request: GenerateRequest, answer: Answer, kv_dtype: str = "bf16") -> None:
        """Raises AssertionError at the first bit that differs. Of a request that was cancelled,
        what came before is compared.
        """
        alone = self.alone(request, kv_dtype)
        rid = request.envelope.rid
        assert answer.ended is not None, f"{rid} has no ending"
        if answer.ended.outcome is Outcome.CLIENT_CANCELLED:
            num = len(answer.tokens)
            assert answer.tokens == alone.tokens[:num], f"{rid}: other tokens"
            assert answer.logprobs == alone.logprobs[:num], f"{rid}: other logprobs"
            if num:
                assert answer.prompt_logprobs == alone.prompt_logprobs, f"{rid}: of the prompt"
        else:
            assert answer.tokens == alone.tokens, f"{rid}: other tokens"
            assert answer.logprobs == alone.logprobs, f"{rid}: other logprobs"
            assert answer.prompt_logprobs == alone.prompt_logprobs, f"{rid}: of the prompt"
            assert answer.ending == alone.ending, f"{rid}: another ending"
        self.num_compared += answer.num_scored

    def compare_all(self, bench: Bench, kv_dtype: str = "bf16") -> int:
        """Everything that the engine was asked → how many tokens that were."""
        before = self.num_compared
        for rid, request in bench.asked.items():
            self.compare(request, bench.answers[rid], kv_dtype)
        return self.num_compared - before


def outcomes(answers: Sequence[Answer]) -> set[Outcome]:
    return {answer.ending[0] for answer in answers}
