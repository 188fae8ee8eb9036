"""A server of real processes, and what is left of one."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import psutil

PATIENCE_S = 60.0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@dataclass
class Served:
    """One `roost serve`, from outside."""

    process: subprocess.Popen[str]
    port: int
    directory: Path
    lines: list[str] = field(default_factory=list)
    # A connection for each call, so that any of the workers may answer it.
    fresh: httpx.Client = field(
        default_factory=lambda: httpx.Client(
            limits=httpx.Limits(max_keepalive_connections=0), timeout=30
        )
    )

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def children(self) -> list[psutil.Process]:
        """The engine first (it listens on no port), then the HTTP workers."""
        engines: list[psutil.Process] = []
        workers: list[psutil.Process] = []
        for child in psutil.Process(self.process.pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):  # it ended since it was listed
                listens = any(c.laddr for c in child.net_connections(kind="tcp"))
                (workers if listens else engines).append(child)
        return engines + workers

    def wait_ready(self) -> None:
        until(lambda: self._is_ready() or self.process.poll() is not None)
        assert self.process.poll() is None, "".join(self.lines)

    def _is_ready(self) -> bool:
        try:
            return self.fresh.get(f"{self.url}/ready", timeout=5).status_code == 200
        except httpx.TransportError:
            return False

    def ends(self) -> int:
        """The exit code, when it has come."""
        return self.process.wait(PATIENCE_S)

    def log(self) -> str:
        return "".join(self.lines)

    def metric(self, name: str) -> float:
        """One sample of /metrics."""
        text = self.fresh.get(f"{self.url}/metrics").text
        (line,) = (x for x in text.splitlines() if x.startswith(name + " "))
        return float(line.split()[-1])


@contextmanager
def serving(model: Path, *flags: str, port: int | None = None) -> Iterator[Served]:
    """Start a server; afterwards none of its processes and none of its files are left."""
    with tempfile.TemporaryDirectory(prefix="e2e-") as directory:
        chosen = free_port() if port is None else port
        command = [sys.executable, "-m", "roost.launch", "serve", str(model)]
        process = subprocess.Popen(
            [*command, "--port", str(chosen), "--max-total-tokens", "16384", *flags],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=os.environ | {"TMPDIR": directory, "NO_COLOR": "1"},
        )
        served = Served(process, chosen, Path(directory))
        reader = threading.Thread(target=_read, args=(process, served.lines))
        reader.start()
        family: list[psutil.Process] = []
        try:
            yield served
            family = _family(process)
        finally:
            family = family or _family(process)
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
            process.wait()
            _, alive = psutil.wait_procs(family, timeout=20)
            for left in alive:
                left.kill()
            reader.join()
            assert process.stdout is not None
            process.stdout.close()
            served.fresh.close()
        assert not alive, f"left behind: {alive}\n{served.log()}"
        until(lambda: not list(Path(directory).iterdir()), 10)


def _family(process: subprocess.Popen[str]) -> list[psutil.Process]:
    try:
        return psutil.Process(process.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def _read(process: subprocess.Popen[str], lines: list[str]) -> None:
    assert process.stdout is not None
    lines.extend(process.stdout)


def until(is_so: Callable[[], bool], limit_s: float = PATIENCE_S) -> None:
    """Look again and again until it is so."""
    end_s = time.monotonic() + limit_s
    while not is_so():
        assert time.monotonic() < end_s, "it never came to be so"
        time.sleep(0.02)


class Streamed:
    """One streaming completion, read in a thread."""

    def __init__(self, url: str, num_tokens: int, prompt: str = "The sea") -> None:
        self.frames: list[str] = []
        self.error: Exception | None = None
        self.status = 0
        self._first = threading.Event()
        self._is_leaving = threading.Event()
        self._thread = threading.Thread(
            target=self._read, args=(url, num_tokens, prompt), daemon=True
        )
        self._thread.start()

    def _read(self, url: str, num_tokens: int, prompt: str) -> None:
        body = {
            "model": "default",
            "prompt": prompt,
            "max_tokens": num_tokens,
            "ignore_eos": True,
            "stream": True,
            "seed": 1,
        }
        try:
            with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=120) as answer:
                self.status = answer.status_code
                for line in answer.iter_lines():
                    if self._is_leaving.is_set():
                        break
                    if line.startswith("data: "):
                        self.frames.append(line.removeprefix("data: "))
                        self._first.set()
        except httpx.TransportError as error:
            self.error = error
        self._first.set()

    def has_begun(self) -> None:
        assert self._first.wait(PATIENCE_S)
        assert self.frames, f"no frame came: {self.status} {self.error}"

    def leave(self) -> None:
        """Close the connection in the middle of the answer."""
        self._is_leaving.set()
        self._thread.join(PATIENCE_S)

    def ended(self) -> list[str]:
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive(), "the stream never ended"
        return self.frames

    def finish_reason(self) -> object:
        last = json.loads(self.frames[-2])
        return last["choices"][0]["finish_reason"]
