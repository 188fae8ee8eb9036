"""What several HTTP workers cost, and how soon a cancelled request's slot is free.

    python -m bench.workers [--model demo] [--rounds 3] [--trials 20] [--workers 4]

Streams: 64 at once, of 16 prompt tokens and 64 new ones each (`bench/load.py`), on a server of one
worker and on one of several, in turns, round by round. Both run all the time; the one that is not
asked does nothing. The ratio is that of the medians.

Cancels: a server that runs 8 requests at a time has 7 witnesses, each of which gets one token a
step, a victim, and a next one in the queue. The victim leaves (its socket is closed, or it is
aborted by a call on a connection of its own); the time until the next one's first token is the time
until the slot was used again, and the tokens that a witness got meanwhile are the steps that were
made. The best is 1 to 2: the step in hand, and the step that already runs the next one.
"""

import argparse
import asyncio
import contextlib
import json
import os
import random
import signal
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from bench.load import Scenario, ServerError, model_name, run_round

_HOST = "127.0.0.1"
_SLOTS = 8
_STREAMS = Scenario("streams", requests=64, in_flight=64, prompt_tokens=16, new_tokens=64)
_START_LIMIT_S = 60.0
_NEXT_LIMIT_S = 30.0
# The engine has taken the next one in by then.
_SETTLE_S = 0.15


@contextlib.asynccontextmanager
async def server(model: str, *flags: str) -> AsyncIterator[int]:
    """A server that is ready, by its port; stopped afterwards."""
    with socket.socket() as probe:
        probe.bind((_HOST, 0))
        port: int = probe.getsockname()[1]
    command = [sys.executable, "-m", "roost.launch", "serve", model, "--port", str(port)]
    process = subprocess.Popen(  # noqa: ASYNC220  it returns at once
        [*command, "--log-level", "error", *flags],
        stdout=subprocess.DEVNULL,
        env=os.environ | {"NO_COLOR": "1"},
    )
    try:
        await _ready(port, process)
        yield port
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()


async def _ready(port: int, process: subprocess.Popen[bytes]) -> None:
    deadline_s = time.perf_counter() + _START_LIMIT_S
    while time.perf_counter() < deadline_s and process.poll() is None:
        with contextlib.suppress(OSError, KeyError, ValueError):
            await model_name(port)
            return
        await asyncio.sleep(0.05)
    raise ServerError("the server did not start")


@dataclass
class Stream:
    """A streamed answer that goes on until it is left."""

    writer: asyncio.StreamWriter
    begun: asyncio.Event = field(default_factory=asyncio.Event)
    first_s: float = 0.0
    last: bytes = b""
    task: asyncio.Task[None] | None = None

    @property
    def num_tokens(self) -> int:
        """Tokens that have come."""
        count: int = json.loads(self.last)["meta_info"]["completion_tokens"]
        return count

    async def read(self, reader: asyncio.StreamReader) -> None:
        async for line in reader:
            if line.startswith(b"data: {"):
                self.last = line[6:]
                if not self.first_s:
                    self.first_s = time.perf_counter()
                    self.begun.set()

    async def leave(self, *, by_reset: bool = False) -> None:
        if by_reset:
            self.writer.transport.abort()
        self.writer.close()
        assert self.task is not None
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


async def _post(port: int, path: str, body: object) -> tuple[asyncio.StreamReader, Stream]:
    content = json.dumps(body).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nHost: {_HOST}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(content)}\r\n\r\n"
    )
    reader, writer = await asyncio.open_connection(_HOST, port)
    writer.write(head.encode() + content)
    return reader, Stream(writer)


async def stream(port: int, rid: str) -> Stream:
    """Ask for tokens without end."""
    body = {
        "input_ids": [random.Random(rid).randrange(1_000, 40_000) for _ in range(8)],
        "sampling_params": {"max_new_tokens": 6000, "ignore_eos": True, "temperature": 0},
        "rid": rid,
        "stream": True,
        "incremental": True,
    }
    reader, found = await _post(port, "/generate", body)
    found.task = asyncio.create_task(found.read(reader))
    return found


async def abort(port: int, rid: str) -> None:
    """Send the call, and wait for its answer."""
    reader, found = await _post(port, "/abort_request", {"rid": rid})
    status = await reader.readline()
    found.writer.close()
    if b" 200 " not in status:
        raise ServerError(f"the abort was answered with {status!r}")


@dataclass(frozen=True)
class Freed:
    """How soon a slot was used again. `steps`: as a witness counts them."""

    wait_s: float
    steps: int


async def cancel_trials(port: int, how: str, trials: int) -> tuple[list[Freed], float]:
    """One victim after another → what was found, and the median time of a step, in seconds."""
    witnesses = [await stream(port, f"{how}-witness-{i}") for i in range(_SLOTS - 1)]
    victim_rid = f"{how}-0"
    victim = await stream(port, victim_rid)
    await asyncio.gather(*(s.begun.wait() for s in (*witnesses, victim)))
    start_s, start_tokens = time.perf_counter(), witnesses[0].num_tokens
    found: list[Freed] = []
    for trial in range(1, trials + 1):
        next_rid = f"{how}-{trial}"
        waits = await stream(port, next_rid)
        # Somewhere in a step, not just behind one.
        await asyncio.sleep(_SETTLE_S + random.Random(trial).uniform(0, 0.05))
        if waits.first_s:
            raise ServerError("the next request did not wait for a slot")
        before, began_s = witnesses[0].num_tokens, time.perf_counter()
        if how == "abort":
            asking = asyncio.create_task(abort(port, victim_rid))
        else:
            asking = asyncio.create_task(victim.leave(by_reset=how == "reset"))
        await asyncio.wait_for(waits.begun.wait(), _NEXT_LIMIT_S)
        found.append(Freed(waits.first_s - began_s, witnesses[0].num_tokens - before))
        await asking
        if how == "abort":
            await victim.leave()
        victim, victim_rid = waits, next_rid
    step_s = (time.perf_counter() - start_s) / (witnesses[0].num_tokens - start_tokens)
    for left in (*witnesses, victim):
        await left.leave()
    return found, step_s


async def cancels(model: str, workers: int, trials: int) -> list[str]:
    """The lines of the second table."""
    lines = []
    flags = ("--http-workers", str(workers), "--max-running-requests", str(_SLOTS))
    async with server(model, *flags, "--max-total-tokens", "32768") as port:
        for how in ("close", "reset", "abort"):
            found, step_s = await cancel_trials(port, how, trials)
            waits = sorted(freed.wait_s for freed in found)
            steps = sorted(freed.steps for freed in found)
            lines.append(
                f"{how:6} slot used again after {statistics.median(waits) * 1e3:5.1f} ms "
                f"(most {waits[-1] * 1e3:5.1f}), {statistics.median(steps):g} steps "
                f"(most {steps[-1]}); a step takes {step_s * 1e3:.1f} ms"
            )
    return lines


async def throughput(model: str, workers: int, rounds: int) -> list[str]:
    """The lines of the first table."""
    speeds: dict[int, list[float]] = {1: [], workers: []}
    memory = ("--max-total-tokens", "32768")
    async with (
        server(model, "--http-workers", "1", *memory) as one,
        server(model, "--http-workers", str(workers), *memory) as several,
    ):
        for number in range(rounds + 1):
            # Who goes first changes: the second finds a warmer machine.
            turns = [(1, one), (workers, several)]
            for count, port in turns if number % 2 else reversed(turns):
                figures = await run_round(port, await model_name(port), _STREAMS, number)
                if number:  # the first round warms up
                    speeds[count].append(figures.tokens_per_s)
    lines = [
        f"{count} workers: {statistics.median(found):7.1f} tokens/s, median of "
        + ", ".join(f"{speed:.1f}" for speed in found)
        for count, found in speeds.items()
    ]
    ratio = statistics.median(speeds[workers]) / statistics.median(speeds[1])
    return [*lines, f"ratio: {ratio:.3f}"]


async def _measure(options: argparse.Namespace) -> None:
    for line in await throughput(options.model, options.workers, options.rounds):
        print(line)
    for line in await cancels(options.model, options.workers, options.trials):
        print(line)


def main() -> None:
    parser = argparse.ArgumentParser(description="The cost of workers, and the speed of a cancel.")
    parser.add_argument("--model", default="demo")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--trials", type=int, default=20)
    asyncio.run(_measure(parser.parse_args()))


if __name__ == "__main__":
    main()
