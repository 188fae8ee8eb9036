"""The whole HTTP surface over a real frontend, engine loop and scheduler; only the model is a
parrot, which says what it was told to.
"""

import asyncio
import contextlib
import json
import threading
from collections.abc import Coroutine, Iterator, MutableMapping
from dataclasses import dataclass, field
from typing import TypeVar

import httpx

from roost.api import create_app
from roost.cache import KvCache, PagePool
from roost.core.clock import SystemClock
from roost.core.config import Layer, ServeConfig, resolve
from roost.core.events import TokenLogprob
from roost.core.plan import PAGE_TOKENS, BatchPlan, Slice, SliceResult, StepResult
from roost.core.request import Origin
from roost.frontend import Frontend, FrontendSettings, TextTools
from roost.sched import SchedLimits, Scheduler
from roost.text import ChatTemplate, StopMatcher, Tokenizer
from roost.wire import MemoryCorridor
from roost.wire.messages import ModelFacts
from roost.worker import EngineLoop

T = TypeVar("T")
Json = dict[str, object]

BOS, EOS, END_OF_TURN = 256, 257, 258
CONTEXT = 256
TEMPLATE = (
    "{% for m in messages %}"
    "{% if m['role'] == 'user' and m['content'] == 'refuse me' %}"
    "{{ raise_exception('this template refuses') }}{% endif %}"
    "{{ '[' + m['role'] + ']' + m['content'] + '<|im_end|>' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '[assistant]' }}{% endif %}"
)


def byte_tokenizer() -> Tokenizer:
    """One token a byte (its id is the byte), and three special ones."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in printable]
    letters = {b: chr(b) for b in printable} | {b: chr(256 + i) for i, b in enumerate(others)}
    return Tokenizer.from_gguf(
        {
            "tokenizer.ggml.model": "gpt2",
            "tokenizer.ggml.pre": "gpt-2",
            "tokenizer.ggml.tokens": [letters[b] for b in range(256)]
            + ["<s>", "<|endoftext|>", "<|im_end|>"],
            "tokenizer.ggml.token_type": [1] * 256 + [3] * 3,
            "tokenizer.ggml.merges": [],
            "tokenizer.ggml.bos_token_id": BOS,
            "tokenizer.ggml.eos_token_id": EOS,
            "tokenizer.ggml.add_bos_token": True,
        }
    )


@dataclass
class Parrot:
    """Says `reply`, byte by byte, and then ends. It steps only while `gate` is open; after
    `closes_after` more steps it closes the gate itself.

    faults_at: a prompt of so many tokens comes to nothing.
    Logprobs: the chosen token −0.5; the k likeliest are the ids 65, 66 … at −1, −2 …
    """

    reply: bytes = b"Hello"
    gate: threading.Event = field(default_factory=threading.Event)
    is_asked: threading.Event = field(default_factory=threading.Event)
    is_closed: threading.Event = field(default_factory=threading.Event)
    closes_after: int = 1_000_000
    fails: bool = False
    faults_at: frozenset[int] = frozenset()

    def execute(self, plan: BatchPlan) -> StepResult:
        self.is_asked.set()
        if self.closes_after == 0:
            self.gate.clear()
            self.is_closed.set()
        self.closes_after -= 1
        self.gate.wait(30)
        if self.fails:
            raise RuntimeError("the parrot was told to fail")
        return StepResult(plan.number, tuple(self._row(part) for part in plan.slices))

    def close(self) -> None:
        pass

    def _row(self, part: Slice) -> SliceResult:
        if part.num_prompt_tokens in self.faults_at:
            return SliceResult(part.request_id, fault="logits are not finite")
        first, last = part.prompt_logprobs
        scored = tuple(self._logprob(part, part.tokens[p + 1]) for p in range(first, last))
        if not part.samples:
            return SliceResult(part.request_id, prompt_logprobs=scored)
        said = part.stop - part.num_prompt_tokens
        token_id = self.reply[said] if said < len(self.reply) else EOS
        if part.bans_stops() and token_id in part.sampling.stop_ids:
            token_id = ord("~")
        for biased, value in part.sampling.logit_bias:
            if value >= 100:
                token_id = biased
        logprobs = (self._logprob(part, token_id),) if part.logprobs.chosen else ()
        return SliceResult(part.request_id, (token_id,), logprobs, scored)

    def _logprob(self, part: Slice, token_id: int) -> TokenLogprob:
        top = tuple((65 + i, -1.0 - i) for i in range(part.logprobs.top))
        picked = tuple((i, -9.0) for i in part.logprobs.token_ids)
        return TokenLogprob(token_id, -0.5, top, picked)


class Rig:
    """A server without its socket."""

    def __init__(self, settings: dict[str, object]) -> None:
        self.config: ServeConfig = resolve([Layer(settings, "{name}")]).config
        self.parrot = Parrot()
        self.parrot.gate.set()
        self._runner = asyncio.Runner()
        corridor = MemoryCorridor()
        tokenizer = byte_tokenizer()
        self.pool = PagePool(4 * CONTEXT // PAGE_TOKENS)
        engine = self.config.engine
        self.scheduler = Scheduler(
            KvCache(self.pool),
            SchedLimits(
                vocab_size=tokenizer.vocab_size,
                max_context_tokens=CONTEXT,
                max_running=engine.max_running_requests,
                max_queued=engine.max_queued_requests,
                policy=engine.schedule_policy,
                bos_id=BOS,
                eos_ids=frozenset(tokenizer.eos_ids),
                max_sessions=engine.max_sessions,
                session_busy=engine.session_busy,
            ),
            lambda i, skip: b"" if skip and tokenizer.is_special(i) else tokenizer.token_bytes(i),
            StopMatcher,
        )
        facts = ModelFacts(
            model_path="/models/parrot.gguf",
            model_type="parrot",
            architecture="ParrotForCausalLM",
            vocab_size=tokenizer.vocab_size,
            max_context_tokens=CONTEXT,
            eos_ids=tuple(sorted(tokenizer.eos_ids)),
            num_kv_tokens=self.pool.num_pages * PAGE_TOKENS,
            kv_dtype="f32",
            isa="portable",
            num_threads=1,
            weight_version="default",
            max_requests=engine.max_running_requests + engine.max_queued_requests,
        )
        clock = SystemClock()
        self.log_levels: list[str] = []
        self._loop = EngineLoop(
            corridor.engine,
            self.scheduler,
            self.parrot,
            facts,
            clock=clock,
            set_log_level=self.log_levels.append,
        )
        self._thread = threading.Thread(target=self._loop.run)
        self._thread.start()
        origin = Origin(worker=0, epoch=1)
        tools = TextTools(tokenizer, ChatTemplate(TEMPLATE, {"bos_token": "<s>"}))
        self.frontend = Frontend(
            corridor.connect(origin),
            origin,
            tools,
            clock,
            FrontendSettings(),
            on_log_level=self.log_levels.append,
        )
        self.run(self.frontend.open(10))
        self.app = create_app(self.frontend, self.config, reasons={"port": "--port"})
        self.client = httpx.AsyncClient(
            transport=httpx.ASGITransport(self.app), base_url="http://rig"
        )

    def close(self) -> None:
        self.parrot.gate.set()
        self.run(self.client.aclose())
        self._loop.stop()
        self.run(self.frontend.close())
        self._thread.join(10)
        self._runner.close()
        assert not self._thread.is_alive()

    def run(self, work: Coroutine[object, object, T]) -> T:
        return self._runner.run(work)

    def get(self, path: str, **headers: str) -> httpx.Response:
        return self.run(self.client.get(path, headers=headers))

    def get_with(self, path: str, body: object) -> httpx.Response:
        """A GET with a JSON body, as some clients send it."""
        return self.run(self.client.request("GET", path, json=body))

    def post(self, path: str, body: object, **headers: str) -> httpx.Response:
        """`body` as JSON, or as it is when it is bytes."""
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        all_headers = {"content-type": "application/json", **headers}
        return self.run(self.client.post(path, content=content, headers=all_headers))

    def stream(self, path: str, body: Json) -> list[Json]:
        """The frames of a stream that ends with [DONE]."""
        response = self.post(path, {**body, "stream": True})
        assert response.status_code == 200, response.text
        assert response.headers["content-type"].startswith("text/event-stream")
        frames = frames_of(response.text)
        assert frames[-1] == "[DONE]"
        return [json.loads(frame) for frame in frames[:-1]]


def frames_of(text: str) -> list[str]:
    assert text.endswith("\n\n")
    blocks = text[:-2].split("\n\n")
    assert all(block.startswith("data: ") and "\n" not in block for block in blocks)
    return [block.removeprefix("data: ") for block in blocks]


@contextlib.contextmanager
def open_rig(**settings: object) -> Iterator[Rig]:
    rig = Rig(settings)
    try:
        yield rig
    finally:
        rig.close()


class Client:
    """One raw ASGI conversation, whose client can leave when it likes."""

    def __init__(self, rig: Rig, path: str, body: Json | None, method: str = "POST") -> None:
        self._rig = rig
        self._body = b"" if body is None else json.dumps(body).encode()
        self._scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "root_path": "",
            "headers": [(b"content-type", b"application/json")],
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 2),
        }
        self._has_sent = False
        self.leaves = asyncio.Event()
        self.heard = asyncio.Event()
        self.status = 0
        self.received = b""

    async def run(self) -> None:
        await self._rig.app(self._scope, self._receive, self._send)

    async def _receive(self) -> dict[str, object]:
        if not self._has_sent:
            self._has_sent = True
            return {"type": "http.request", "body": self._body, "more_body": False}
        await self.leaves.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: MutableMapping[str, object]) -> None:
        if message["type"] == "http.response.start":
            assert isinstance(message["status"], int)
            self.status = message["status"]
        else:
            assert isinstance(message["body"], bytes)
            self.received += message["body"]
            self.heard.set()
