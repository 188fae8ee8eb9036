"""Run the simulated house with many seeds, on all cores; print what was covered, and for a seed
that fails the shortest script that still does.

    python tools/simulate.py --seeds 10000 [--start 0] [--minutes 5]
    python tools/simulate.py --replay failing.jsonl
"""

import argparse
import multiprocessing
import os
import sys
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.sim.coverage import report
from tests.sim.roll import roll
from tests.sim.script import from_text, to_text
from tests.sim.trial import Verdict, run, shrink

_CHUNK = 25
_MAX_FAILURES = 10


def _run_chunk(seeds: range) -> tuple[int, dict[int, str], Counter[tuple[str, str]]]:
    """(seeds run, what is wrong first with those that failed, what was covered)"""
    failed: dict[int, str] = {}
    coverage: Counter[tuple[str, str]] = Counter()
    for seed in seeds:
        verdict = run(roll(seed))
        coverage.update(verdict.coverage)
        if verdict.wrong:
            failed[seed] = verdict.wrong[0]
    return len(seeds), failed, coverage


def _simulate(first: int, num_seeds: int, minutes: float | None, num_processes: int) -> int:
    chunks = [
        range(at, min(at + _CHUNK, first + num_seeds))
        for at in range(first, first + num_seeds, _CHUNK)
    ]
    began_s = said_s = time.monotonic()
    num_run = 0
    failed: dict[int, str] = {}
    coverage: Counter[tuple[str, str]] = Counter()
    with multiprocessing.get_context("fork").Pool(num_processes) as pool:
        for num, bad, covered in pool.imap_unordered(_run_chunk, chunks):
            num_run += num
            failed.update(bad)
            coverage.update(covered)
            now_s = time.monotonic()
            if now_s - said_s > 10:
                said_s = now_s
                print(f"{num_run:>8} seeds, {len(failed)} failed, {now_s - began_s:.0f} s")
            if len(failed) >= _MAX_FAILURES or (minutes and now_s - began_s > 60 * minutes):
                break
    print(report(coverage))
    print(f"{num_run} seeds from {first} on in {time.monotonic() - began_s:.0f} s: ", end="")
    print("all is well" if not failed else f"{len(failed)} failed")
    for seed in sorted(failed):
        print(f"  {seed}: {failed[seed]}")
    if failed:
        _show(min(failed))
    return bool(failed)


def _show(seed: int) -> None:
    least = shrink(roll(seed))
    _complain(run(least))
    path = Path(f"sim-{seed}.jsonl")
    path.write_text(to_text(least))
    print(f"\nseed {seed}, in its shortest form; again with: tools/simulate.py --replay {path}\n")
    print(to_text(least), end="")


def _complain(verdict: Verdict) -> None:
    for what in verdict.wrong:
        print(f"  · {what}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--seeds", type=int, default=1000)
    parser.add_argument("--start", type=int, default=0)
    parser.add_argument("--minutes", type=float, help="stop after so long")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--replay", type=Path, help="a script that was printed")
    args = parser.parse_args()
    if args.replay is not None:
        verdict = run(from_text(args.replay.read_text()))
        _complain(verdict)
        print("all is well" if not verdict.wrong else "it goes wrong")
        return bool(verdict.wrong)
    return _simulate(args.start, args.seeds, args.minutes, args.jobs)


if __name__ == "__main__":
    sys.exit(main())
