"""roost against llama.cpp's server, on this machine, on the same file: one command, one table.

    python -m bench.serve [--llama-server PATH] [--rounds 3] [--out results.jsonl]

Speeds of a machine wander; so the servers take turns: round by round, scenario by scenario, server
by server. Each turn starts its server afresh (that is the figure `start`: from the launch of the
process to the first token of the first request), warms it, runs one round of `bench/load.py`, stops
the server, and waits 2.5 s, in which the machine comes to rest.
"""

import argparse
import asyncio
import json
import signal
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from bench.contestants import REST_S, Contestant, add_options, chosen, launched, peers, roost
from bench.load import SCENARIOS, Figures, run_round

_DEFAULT_SCENARIOS = ["single", "prefill512", "prefill2048", "batch16", "batch64"]


@dataclass(frozen=True)
class Turn:
    """One server's round of one scenario."""

    label: str
    round_number: int
    start_s: float
    figures: Figures


def take_turn(contestant: Contestant, scenario_name: str, round_number: int) -> Turn:
    """Start the server, run one round, stop the server. Raises ServerError as `launched`."""
    scenario = SCENARIOS[scenario_name]
    with launched(contestant, scenario.in_flight) as (name, start_s):
        figures = asyncio.run(run_round(contestant.port, name, scenario, round_number))
    return Turn(contestant.label, round_number, start_s, figures)


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


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure roost and llama.cpp against each other.")
    parser.add_argument("--scenarios", nargs="+", choices=SCENARIOS, default=_DEFAULT_SCENARIOS)
    parser.add_argument("--rounds", type=int, default=3)
    add_options(parser, port=8_110)
    parser.add_argument("--out", type=Path, help="append every turn as a line of JSON")
    options = parser.parse_args()
    # An ending by a signal must still stop the server that has its turn.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))
    contestants = chosen([roost(options), *peers(options)], options)
    turns = compete(contestants, options.scenarios, options.rounds, options.out)
    print()
    print(table(turns, contestants, options.scenarios))


if __name__ == "__main__":
    main()
