"""Where each microsecond of a step goes, from the engine's loop down to the kernels.

    python -m bench.account [--model demo] [--threads N] [--rows 1 16 64] [--context 256]

A whole engine on a real model answers over a real socket, with nobody but us at its other end. Its
parts are timed by a stopwatch in each, and the ops inside the native call on every thread: what it
worked on, and how long it then waited for the others; shown is the mean over the threads. One table
a number of rows, and one for a prompt of 512 tokens; the shares of a table add up to 100 %. The
median step is shown as well, because a mean takes in what else the machine did.
"""

import argparse
import functools
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import ParamSpec, TypeVar

import msgspec
from tests.sim.requests import HERE, request, sampling

from roost import _native
from roost.core.clock import SystemClock
from roost.core.config import EngineConfig, ModelConfig, ServeConfig
from roost.programs import CpuProgram
from roost.runner import FreeMemory, Runner
from roost.wire.zmq_channel import ZmqEngineSide, ZmqWorkerSide
from roost.worker import EngineLoop, Surroundings, build_worker

P = ParamSpec("P")
R = TypeVar("R")
PREFILL_TOKENS = 512
# Ops whose name begins so do no arithmetic of the model.
NOT_KERNELS = ("entry",)


@dataclass(slots=True)
class Watch:
    """Seconds by part. What a part calls, and is timed itself, does not count for the caller."""

    seconds: dict[str, float] = field(default_factory=dict)
    _inner: list[float] = field(default_factory=list)

    def timed(self, name: str, call: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(call)
        def run(*args: P.args, **kwargs: P.kwargs) -> R:
            self._inner.append(0.0)
            begin = time.perf_counter()
            try:
                return call(*args, **kwargs)
            finally:
                took = time.perf_counter() - begin
                self.seconds[name] = self.seconds.get(name, 0.0) + took - self._inner.pop()
                if self._inner:
                    self._inner[-1] += took

        return run

    def put_on(self, owner: object, **parts: str) -> None:
        """Time methods of `owner`: name of the method = name of the part."""
        for method, part in parts.items():
            setattr(owner, method, self.timed(part, getattr(owner, method)))


class TimedNative:
    """The native program, its runs timed: its own attributes cannot be replaced."""

    def __init__(self, native: _native.Program, watch: Watch) -> None:
        self._native = native
        self.run = watch.timed("native call", native.run)

    def __getattr__(self, name: str) -> object:
        return getattr(self._native, name)


@dataclass(frozen=True, slots=True)
class Part:
    """A line of an account: microseconds a step, and what was moved and multiplied in it."""

    name: str
    us: float
    is_kernel: bool = False
    num_bytes: float = 0.0
    macs: float = 0.0
    count: float = 0.0


class Engine:
    """An engine and its only client. Only what happens in `loop.step` is timed."""

    def __init__(self, model: str, threads: int | None, folder: Path) -> None:
        address = f"ipc://{folder}/engine"
        channel = ZmqEngineSide(address)
        self.worker = ZmqWorkerSide(address, HERE)
        engine = EngineConfig(
            threads=threads,
            max_total_tokens=64 * 1024,
            max_step_tokens=PREFILL_TOKENS,
            max_step_ms=60_000,  # a prompt in one step
            prefix_cache="off",
            speculate="off",
        )
        config = ServeConfig(model=ModelConfig(model=model), engine=engine)
        around = Surroundings(
            SystemClock(), cache_dir=folder, measure_memory=lambda: FreeMemory(4 << 30, "enough")
        )
        self.loop: EngineLoop = build_worker(config, channel, around)
        self.watch = Watch()
        runner = self.loop._executor
        assert isinstance(runner, Runner)
        program = runner._program
        assert isinstance(program, CpuProgram)
        assert program._native is not None
        self.native = program._native
        self.num_threads = self.loop.facts.num_threads
        self._num_asked = 0
        put_on = self.watch.put_on
        # It stands in for what it holds; the type is that of a native class, which has no heirs.
        program._native = TimedNative(self.native, self.watch)  # type: ignore[assignment]
        put_on(channel, receive="receive", send="encode and send")
        put_on(program, run="marshal")
        put_on(runner._inputs, make="inputs")
        put_on(runner, execute="results")
        put_on(self.loop._scheduler, expire="expire", plan="plan", commit="commit")
        put_on(self.loop, _beat="beat", _say="outbox", _deliver="deliver", step="loop")

    def ask(self, num_prompt_tokens: int, num_new_tokens: int) -> None:
        self._num_asked += 1
        asked = sampling(num_new_tokens, min_new_tokens=num_new_tokens)
        self.worker.send(
            request(
                f"r{self._num_asked}",
                (self._num_asked % 997, *range(1000, 1000 + num_prompt_tokens - 1)),
                msgspec.structs.replace(asked, temperature=0.0),
                serial=self._num_asked,
                arrival_s=time.monotonic(),
            )
        )

    def steps(self, count: int) -> list[float]:
        """Take so many steps that compute → seconds of each."""
        took: list[float] = []
        while len(took) < count:
            begin = time.perf_counter()
            did_compute = self.loop.step()
            if did_compute:
                took.append(time.perf_counter() - begin)
            self.worker.receive()
        return took

    def drain(self) -> None:
        while self.loop.step():
            self.worker.receive()

    def account(self, num_steps: int, num_rows: int) -> tuple[list[Part], float]:
        """Parts of `num_steps` steps from now on, and the median step in µs."""
        self.watch.seconds.clear()
        self.native.profile(True)
        took = self.steps(num_steps)
        phases = self.native.profiled()
        self.native.profile(False)
        seconds = dict(self.watch.seconds)
        scale = 1 / num_steps
        each = scale / self.num_threads
        native_us = seconds.pop("native call") * 1e6 * scale
        parts = [Part(name, s * 1e6 * scale) for name, s in seconds.items()]
        waited_us = count = 0.0
        for name, times, worked_ns, waited_ns, num_bytes, row_macs in phases:
            if not times:
                continue
            is_kernel = not name.startswith(NOT_KERNELS)
            repeats = times * each
            worked_us = worked_ns * each / 1e3
            # Of a prompt only the last row has logits.
            is_last_row = name.startswith("logits") and num_rows == PREFILL_TOKENS
            rows = 1 if is_last_row else num_rows
            moved = num_bytes * repeats, row_macs * repeats * rows
            if is_kernel:
                parts.append(Part("· " + name, worked_us, True, *moved, repeats))
            waited_us += waited_ns * each / 1e3 if is_kernel else 0.0
            native_us -= worked_us + (waited_ns * each / 1e3 if is_kernel else 0.0)
            count += repeats if is_kernel else 0
        parts.append(Part("· waiting for other threads", waited_us, count=count))
        parts.append(Part("· checking, planning, waking up", native_us))
        return parts, statistics.median(took) * 1e6


def show(title: str, parts: list[Part], median_us: float) -> None:
    total = sum(part.us for part in parts)
    print(f"\n{title}: mean {total:,.0f} µs, median {median_us:,.0f} µs")
    print(f"{'':34}{'µs':>10}{'%':>7}{'times':>7}{'GB/s':>7}{'GMAC/s':>8}")
    for part in parts:
        rates = ""
        if part.num_bytes:
            rates = f"{part.num_bytes / part.us / 1e3:7.1f}{part.macs / part.us / 1e3:8.0f}"
        times = f"{part.count:7.0f}" if part.count else " " * 7
        print(f"{part.name:34}{part.us:10.1f}{part.us / total:7.1%}{times}{rates}")
    outside = sum(part.us for part in parts if not part.is_kernel)
    print(f"{'outside kernels':34}{outside:10.1f}{outside / total:7.1%}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--model", default="demo")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--rows", type=int, nargs="*", default=[1, 16, 64])
    parser.add_argument("--context", type=int, default=256)
    parser.add_argument("--steps", type=int, default=100)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        engine = Engine(args.model, args.threads, Path(folder))
        print(f"{args.model}, {engine.loop.facts.isa}, {engine.num_threads} threads")
        for rows in args.rows:
            for _ in range(rows):
                engine.ask(args.context, args.steps + 150)
            while engine.loop._scheduler.load().num_running < rows:
                engine.steps(1)
            engine.steps(rows + 20)
            parts, median_us = engine.account(args.steps, rows)
            show(f"{rows} rows of one token at {args.context}", parts, median_us)
            engine.drain()
        for _ in range(8):
            engine.ask(PREFILL_TOKENS, 1)
            engine.steps(1)
        for _ in range(8):
            engine.ask(PREFILL_TOKENS, 1)
        parts, median_us = engine.account(8, PREFILL_TOKENS)
        show(f"a prompt of {PREFILL_TOKENS} tokens", parts, median_us)
        engine.worker.close()
        engine.loop.close()


if __name__ == "__main__":
    main()
