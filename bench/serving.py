"""What a streamed token, and a tiny request, cost the HTTP worker, without any model.

    python -m bench.serving [--streams 64] [--steps 150] [--every-ms 8] [--rounds 3]

The worker is the real one: its process, its sockets, the real corridor and the demo model's
tokenizer. The engine is a script: it gives every stream one token each `every-ms`, and answers a
request for one token at once. The client reads the sockets and does little else.

- `worker`: CPU time of the worker's process (all its threads) from just behind the first token to
  just before the last, over the tokens of that time. `engine`: CPU time of the thread that encodes
  and sends them. `frames`: events a token; below 1, the worker could not keep up and sent two
  tokens in one. In microseconds.
- `tiny`: requests of 8 prompt tokens for one new one, 32 in flight, a connection each: CPU time of
  the worker a request in microseconds, and requests a second, which the client shares in.
"""

import argparse
import contextlib
import json
import os
import selectors
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from roost.core.config import ServeConfig, ServerConfig
from roost.core.events import Accepted, Delta, Ended, Started, Usage
from roost.core.outcome import Outcome
from roost.core.request import Envelope, GenerateRequest, Origin
from roost.launch.listener import listen
from roost.launch.readiness import Job, Leave, Serve, say
from roost.wire import engine_address
from roost.wire.messages import Cancel, Heartbeat, Hello, Load, ModelFacts, Welcome
from roost.wire.zmq_channel import ZmqEngineSide
from roost.worker.outbox import Outbox

_HOST = "127.0.0.1"
_IN_FLIGHT = 32
_TINY_REQUESTS = 512
_PROMPT = list(range(2_000, 2_008))
# Ordinary words of the demo model's vocabulary.
_FIRST_ID, _NUM_IDS = 1_000, 30_000
# Steps in which streams begin and end are not measured.
_MARGIN_STEPS = 10
_LIMIT_S = 60.0

_BODIES: dict[str, dict[str, object]] = {
    "/v1/completions": {"prompt": _PROMPT, "temperature": 0.0},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "Tell me of the sea."}]},
    "/generate": {"input_ids": _PROMPT, "incremental": True},
}


def cpu_s(pid: int) -> float:
    """CPU time of a process, all its threads: Linux makes the number of its clock so."""
    return time.clock_gettime((~pid << 3) | 2)


@dataclass
class Script:
    """What the engine is to do: give `steps` tokens to each stream, once `streams` have come.

    worker_s, engine_s: CPU time of the measured steps. steps 0: one token at once.
    """

    pid: int
    streams: int
    steps: int
    every_s: float
    worker_s: float = 0.0
    engine_s: float = 0.0

    @property
    def num_measured(self) -> int:
        return (self.steps - 2 * _MARGIN_STEPS) * self.streams


@dataclass
class Engine:
    """A scripted engine in a thread of its own."""

    channel: ZmqEngineSide
    script: Script | None = None
    is_over: bool = False
    _held: dict[tuple[Origin, int], Envelope] = field(default_factory=dict)

    def run(self) -> None:
        """Until `is_over`."""
        outbox = Outbox(self.channel)
        origins: set[Origin] = set()
        next_beat_s = 0.0
        while not self.is_over:
            self.channel.wait(0.02)
            self._hear(outbox, origins)
            now_s = time.monotonic()
            if now_s >= next_beat_s:
                next_beat_s = now_s + 0.5
                for origin in origins:
                    outbox.tell(origin, Heartbeat(now_s, Load()))
            script = self.script
            if script is not None and script.steps and len(self._held) == script.streams:
                self._stream(outbox, script)
        self.channel.close()

    def _hear(self, outbox: Outbox, origins: set[Origin]) -> None:
        for message in self.channel.receive():
            if isinstance(message, Hello):
                origins.add(message.origin)
                self.channel.send(message.origin, Welcome(1, _facts()))
            elif isinstance(message, GenerateRequest):
                envelope = message.envelope
                outbox.send(envelope, Accepted())
                outbox.send(envelope, Started(0))
                if self.script is not None and self.script.steps:
                    self._held[envelope.origin, envelope.serial] = envelope
                else:
                    outbox.send(envelope, Delta(0, (_FIRST_ID,)))
                    outbox.send(envelope, Ended(Outcome.LENGTH, Usage(len(_PROMPT), 1)))
            elif isinstance(message, Cancel):
                self._held.pop((message.origin, message.serial), None)
        outbox.flush()

    def _stream(self, outbox: Outbox, script: Script) -> None:
        envelopes = list(self._held.values())
        due_s = time.monotonic()
        for step in range(script.steps):
            due_s += script.every_s
            time.sleep(max(0.0, due_s - time.monotonic()))
            if step == _MARGIN_STEPS:
                worker_s, engine_s = cpu_s(script.pid), time.thread_time()
            elif step == script.steps - _MARGIN_STEPS:
                script.worker_s = cpu_s(script.pid) - worker_s
                script.engine_s = time.thread_time() - engine_s
            for number, envelope in enumerate(envelopes):
                token = _FIRST_ID + (step * 7919 + number * 104_729) % _NUM_IDS
                outbox.send(envelope, Delta(step, (token,)))
            outbox.flush()
        for envelope in envelopes:
            outbox.send(envelope, Ended(Outcome.LENGTH, Usage(len(_PROMPT), script.steps)))
        outbox.flush()
        self._held.clear()
        self.script = None


def _facts() -> ModelFacts:
    return ModelFacts(
        model_path="demo",
        model_type="llama",
        architecture="llama",
        vocab_size=49_152,
        max_context_tokens=2_048,
        eos_ids=(2,),
        num_kv_tokens=1 << 20,
        kv_dtype="bf16",
        isa="none",
        num_threads=1,
        weight_version="default",
        max_requests=2_048,
    )


def _request(path: str, body: dict[str, object]) -> bytes:
    content = json.dumps(body).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nHost: {_HOST}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(content)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + content


def load(port: int, request: bytes, *, requests: int, in_flight: int) -> Counter[str]:
    """Send `request` so often; return when all have ended → events, reads, and seconds · 10⁶."""
    found: Counter[str] = Counter()
    selector = selectors.DefaultSelector()
    num_left = requests
    begun_s = time.perf_counter()

    def begin() -> None:
        connection = socket.create_connection((_HOST, port))
        connection.sendall(request)
        selector.register(connection, selectors.EVENT_READ)

    for _ in range(in_flight):
        begin()
    num_open, num_left = in_flight, requests - in_flight
    while num_open:
        ready = selector.select(_LIMIT_S)
        if not ready:
            raise TimeoutError("the worker says nothing")
        for key, _ in ready:
            connection = key.fileobj
            assert isinstance(connection, socket.socket)
            data = connection.recv(1 << 16)
            found["reads"] += 1
            found["events"] += data.count(b"data: {")
            if data:
                continue
            selector.unregister(connection)
            connection.close()
            found["ended"] += 1
            num_open -= 1
            if num_left:
                num_left, num_open = num_left - 1, num_open + 1
                begin()
    found["us"] = round((time.perf_counter() - begun_s) * 1e6)
    return found


@contextlib.contextmanager
def worker(directory: Path) -> Iterator[tuple[int, Engine, int]]:
    """A worker that serves, by its process's id, its engine, and its port."""
    listener = listen(_HOST, 0)
    engine = Engine(ZmqEngineSide(engine_address(directory)))
    thread = threading.Thread(target=engine.run)
    thread.start()
    config = ServeConfig(server=ServerConfig(host=_HOST))
    news, news_fd = os.pipe()
    process = subprocess.Popen(
        [sys.executable, "-m", "roost.launch.process"],
        stdin=subprocess.PIPE,
        stderr=subprocess.DEVNULL,  # a line a request
        pass_fds=(news_fd, listener.fileno()),
        bufsize=0,
    )
    os.close(news_fd)
    assert process.stdin is not None
    orders_fd = process.stdin.fileno()
    job = Job("http", config, {}, str(directory), os.getpid(), 0, 1, news_fd, listener.fileno())
    try:
        say(orders_fd, job)
        if b"ready" not in os.read(news, 1 << 16):
            raise RuntimeError("the worker did not start")
        say(orders_fd, Serve())
        yield process.pid, engine, listener.getsockname()[1]
    finally:
        say(orders_fd, Leave())
        process.wait()
        os.close(news)
        engine.is_over = True
        thread.join()
        listener.close()


def main() -> None:
    """Print a line a route, and one for tiny requests; medians of the rounds."""
    parser = argparse.ArgumentParser(description="CPU time of the HTTP worker.")
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--every-ms", type=float, default=8.0)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    figures: dict[str, list[tuple[float, float, float]]] = {path: [] for path in _BODIES}
    tiny: list[tuple[float, float]] = []
    with (
        tempfile.TemporaryDirectory(prefix="roost-bench-") as directory,
        worker(Path(directory)) as (pid, engine, port),
    ):
        for number in range(options.rounds + 1):
            for path, body in _BODIES.items():
                script = Script(pid, options.streams, options.steps, options.every_ms / 1e3)
                engine.script = script
                request = _request(path, {**body, "stream": True})
                found = load(port, request, requests=options.streams, in_flight=options.streams)
                num_tokens = options.streams * options.steps
                row = (
                    script.worker_s / script.num_measured * 1e6,
                    script.engine_s / script.num_measured * 1e6,
                    found["events"] / num_tokens,
                )
                if number:  # the first round warms up
                    figures[path].append(row)
            engine.script = None
            body = {"prompt": _PROMPT, "max_tokens": 1, "temperature": 0.0, "stream": True}
            before_s = cpu_s(pid)
            found = load(
                port,
                _request("/v1/completions", {**body, "stream_options": {"include_usage": True}}),
                requests=_TINY_REQUESTS,
                in_flight=_IN_FLIGHT,
            )
            spent_us = (cpu_s(pid) - before_s) * 1e6
            if number:
                tiny.append((spent_us / _TINY_REQUESTS, _TINY_REQUESTS / found["us"] * 1e6))
    for path, rows in figures.items():
        spent, sent, frames = (statistics.median(column) for column in zip(*rows, strict=True))
        print(f"{path:22} worker {spent:6.1f}  engine {sent:5.1f}  frames {frames:.2f}")
    spent, speed = (statistics.median(column) for column in zip(*tiny, strict=True))
    print(f"{'tiny':22} worker {spent:6.1f}  {speed:7.1f} requests/s")


if __name__ == "__main__":
    main()
