"""roost beside other servers, on this machine, on the same model: one command, one table.

    python -m bench.serve [--keep] [--rounds 3] [--minutes 25] [--llama-server PATH]
        [--peer LABEL=COMMAND] [--model FILE] [--scenarios single batch16 …] [--record]

Speeds of a machine wander; so the servers take turns: round by round, launch by launch, server by
server, with 2.5 s between them in which the machine comes to rest. A turn launches its server (that
is the figure `start`: from the launch of the process to the first token of the first request),
warms it, plays scenarios of `bench/load.py`, and stops it.

Without `--keep` each scenario has a launch of its own. With it those that want the same number of
slots share one, which matters where a server takes a minute to start: 16 slots for single, the
prompts and batch16; 32 for shared and tiny; 64 for batch64. (More slots for all would be unfair:
llama.cpp divides its context among them.) No two scenarios' prompts begin alike, so nothing is
found in a cache that an earlier scenario filled, except in `shared_warm`, which always follows
`shared` in its launch.

roost runs without speculation, which its peers do not do by default and which the loops that a
small model falls into would flatter; one more row shows what it adds (`--speculate ngram`, as by
default). Its packed weights are kept in a folder made for the run. The first launch of each round
finds it empty (`start first`); the others find what that one packed.

The first round plays everything. Further rounds are played cheapest first, judged by what their
turns took, while they fit into `--minutes`: a slow peer's long scenarios stay at one round rather
than hold up everything. A server that fails loses its figures, not the run.
"""

import argparse
import asyncio
import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from bench import limits, results
from bench.contestants import (
    REST_S,
    Contestant,
    add_options,
    chosen,
    demo_model,
    launched,
    peers,
    roost,
)
from bench.load import SCENARIOS, Figures, ServerError, run_round
from bench.memory import tree_pss
from bench.report import OURS, Sample, table
from bench.traffic import traffic_of

_SLOTS = (16, 32, 64)
_NEVER_APART = ("shared", "shared_warm")
# What turns are thought to take before one was seen: enough for a launch.
_GUESS_S = 60.0


@dataclass(frozen=True)
class Launch:
    """Scenarios that share the launch of a server. Only roost may have more flags for it."""

    scenarios: tuple[str, ...]
    flags: tuple[str, ...] = ()
    is_memory_read: bool = False
    # Written after the names of its rows.
    suffix: str = ""

    @property
    def streams(self) -> int:
        return max((SCENARIOS[name].in_flight for name in self.scenarios), default=1)

    @property
    def name(self) -> str:
        return " ".join(self.scenarios) + (f" ({' '.join(self.flags)})" if self.flags else "")


@dataclass
class Contest:
    """Everything that was measured so far, and what it took."""

    options: argparse.Namespace
    folder: Path
    begin_s: float = field(default_factory=time.monotonic)
    samples: list[Sample] = field(default_factory=list)
    # (launch, server) → what its last turn took.
    took_s: dict[tuple[str, str], float] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)

    def contestants(self, launch: Launch, round_number: int) -> list[Contestant]:
        packed = self.folder / f"packed{round_number}"
        speculate = () if "--speculate" in launch.flags else ("--speculate", "off")
        ours = roost(self.options, "--cache-dir", str(packed), *speculate, *launch.flags)
        if launch.flags or not launch.scenarios:
            return chosen([ours], self.options)
        return chosen([ours, *peers(self.options)], self.options)

    def play(self, launch: Launch, round_number: int) -> None:
        """A turn for each."""
        for contestant in self.contestants(launch, round_number):
            begin_s = time.monotonic()
            try:
                found = list(turn(contestant, launch, round_number))
            except ServerError as error:
                self.failed.append(f"{contestant.label}, {launch.name}: {error}")
                print(f"FAILED {self.failed[-1]}", flush=True)
            else:
                self.samples += found
            time.sleep(REST_S)
            took_s = time.monotonic() - begin_s
            self.took_s[launch.name, contestant.label] = took_s
            print(
                f"{(time.monotonic() - self.begin_s) / 60:5.1f} min  round {round_number + 1} "
                f" {contestant.label}: {launch.name or 'first start'} took {took_s:.0f} s",
                flush=True,
            )

    def expected_s(self, launch: Launch) -> float:
        """What a round of this launch will take."""
        took = [seconds for (name, _), seconds in self.took_s.items() if name == launch.name]
        return sum(took) if took else _GUESS_S

    def left_s(self) -> float:
        left: float = self.options.minutes * 60 - (time.monotonic() - self.begin_s)
        return left


def launches(scenarios: list[str], *, keep: bool) -> list[Launch]:
    """How the scenarios are divided among launches, cheap ones first."""
    together = [name for name in _NEVER_APART if name in scenarios]
    single = [(name,) for name in scenarios if name not in together]
    groups = [*single, tuple(together)] if together else single
    if keep:
        by_slots = {
            slots: [name for name in scenarios if _slots_of(name) == slots] for slots in _SLOTS
        }
        groups = [tuple(names) for names in by_slots.values() if names]
    found = [Launch(names, is_memory_read=(number == 0)) for number, names in enumerate(groups)]
    if "single" in scenarios:
        found.append(Launch(("single",), ("--speculate", "ngram"), suffix="_ngram"))
    if "tiny" in scenarios:
        found.append(Launch(("tiny",), ("--http-workers", "4"), suffix="4"))
    return found


def _slots_of(scenario: str) -> int:
    return next(slots for slots in _SLOTS if SCENARIOS[scenario].in_flight <= slots)


def turn(contestant: Contestant, launch: Launch, round_number: int) -> Iterator[Sample]:
    """One server's launch and its scenarios. Raises ServerError."""

    def sample(row: str, value: float) -> Sample:
        print(f"    {contestant.label:16} {row:20} {value:10,.2f}", flush=True)
        return Sample(contestant.label, round_number, row, value)

    with launched(contestant, launch.streams) as server:
        if not launch.scenarios:
            yield sample("start first", server.start_s)
        elif not launch.flags:
            yield sample("start", server.start_s)
        if launch.is_memory_read:
            yield sample("memory", tree_pss(server.pid) / 1e6)
        for name in launch.scenarios:
            scenario = SCENARIOS[name]
            made = asyncio.run(run_round(contestant.port, server.model, scenario, round_number))
            for row, value in figures_of(name + launch.suffix, made):
                yield sample(row, value)
        if launch.is_memory_read:
            yield sample("memory loaded", tree_pss(server.pid) / 1e6)


def figures_of(name: str, made: Figures) -> Iterator[tuple[str, float]]:
    """The rows of the table that a round of a scenario fills."""
    yield name, made.tokens_per_s
    if name == "single":
        yield "single ttft", made.ttft_s * 1e3
    if name.startswith("batch"):
        yield f"{name} itl", made.itl_s * 1e3
        yield f"{name} p99", made.itl_p99_s * 1e3
        # Where most events hold several tokens at once, the median says nothing.
        if made.itl_median_s > made.itl_s / 10:
            yield f"{name} p99/median", made.itl_p99_s / made.itl_median_s
        yield f"{name} ttft", made.ttft_s * 1e3


def compete(contest: Contest) -> None:
    """The first round whole; the others, cheapest first, as far as the time goes."""
    options = contest.options
    played = launches(options.scenarios, keep=options.keep)
    first_start = Launch(())
    for launch in (first_start, *played):
        contest.play(launch, 0)
    later = sorted(played, key=contest.expected_s)
    for launch in later:
        for round_number in range(1, options.rounds):
            expected_s = contest.expected_s(launch)
            if launch is later[0]:
                expected_s += contest.expected_s(first_start)
            if expected_s > contest.left_s():
                print(f"no time for round {round_number + 1} of {launch.name}", flush=True)
                break
            if launch is later[0]:
                contest.play(first_start, round_number)
            contest.play(launch, round_number)


def report(contest: Contest) -> str:
    """The table, the limits, how near they were come to; written down if asked for."""
    options = contest.options
    model = options.model or demo_model()
    machine = None if options.no_limits else limits.measure(len(os.sched_getaffinity(0)))
    found = [peer.label for peer in chosen(peers(options), options)]
    is_gguf = model.suffix == ".gguf"
    traffic = traffic_of(model) if is_gguf else None
    run = results.Run(model.stem, tuple(found), tuple(contest.samples), machine, traffic)
    lines = [table(contest.samples, found), ""]
    if machine:
        lines += [limits.text_of(machine), "", *results.shares(run)]
    if options.record:
        lines += ["", *(f"wrote {path.name}" for path in results.write(run, options.folder))]
    if contest.failed:
        lines += ["", *(f"failed: {what.splitlines()[0]}" for what in contest.failed)]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure roost and others side by side.")
    parser.add_argument("--scenarios", nargs="+", choices=SCENARIOS, default=list(SCENARIOS))
    parser.add_argument("--rounds", type=int, default=3, help="at most so many")
    parser.add_argument("--minutes", type=float, default=25.0, help="no new turns after them")
    parser.add_argument("--keep", action="store_true", help="several scenarios a launch")
    parser.add_argument("--no-limits", action="store_true", help="do not measure the machine")
    parser.add_argument("--record", action="store_true", help="write JSON and plots")
    parser.add_argument("--folder", type=Path, default=results.FOLDER, help="where --record writes")
    add_options(parser, port=8_110)
    options = parser.parse_args()
    # An ending by a signal must still stop the server that has its turn.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))
    if not options.no_limits:
        limits.prepare()
    with tempfile.TemporaryDirectory() as folder:
        contest = Contest(options, Path(folder))
        compete(contest)
        print()
        print(report(contest))
    if any(what.startswith(OURS) for what in contest.failed):
        sys.exit(1)


if __name__ == "__main__":
    main()
