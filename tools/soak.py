"""Random runs of the engine on a real model, for minutes: every answer is compared, to the last
bit, with that of the same request alone, cold, on one thread.

    python tools/soak.py --minutes 5 [--start 0] [--model FILE] [--requests 64]
    python tools/soak.py --seed 1234

`--seed` runs one of them again, as it was. Ends with 1 at the first difference, and says its seed.
"""

import argparse
import logging
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.models.bits import Judge
from tests.models.traces import Trace, play, pool_of, trace_of

from roost.weights import resolve_model

# So many runs draw from the same requests, so that what each is answered alone is computed once.
_RUNS_A_POOL = 40


class _Tally:
    """What was run so far."""

    def __init__(self) -> None:
        self.began_s = time.monotonic()
        self.counts: Counter[str] = Counter()

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self.began_s

    def line(self, judge: Judge) -> str:
        kinds = ", ".join(f"{count:,} {name}" for name, count in self.counts.items())
        return f"{self.elapsed_s:5.0f} s: {kinds}, {judge.num_compared:,} tokens compared"


def _told(trace: Trace) -> str:
    settings = " ".join(f"{name}={value}" for name, value in trace.settings.items())
    return f"{settings} growth={trace.growth_tokens} requests={sum(map(len, trace.arrivals))}"


def _run(seed: int, most_requests: int, judge: Judge, tally: _Tally) -> bool:
    trace = trace_of(seed, most_requests)
    try:
        bench = play(trace, pool_of(seed // _RUNS_A_POOL), judge)
    except AssertionError as wrong:
        print(f"seed {seed}: {wrong}\n  {_told(trace)}", flush=True)
        return False
    tally.counts["runs"] += 1
    tally.counts["requests"] += len(bench.asked)
    tally.counts["retractions"] += bench.num_retractions
    tally.counts["cached tokens"] += bench.num_cached_tokens
    tally.counts["right guesses"] += bench.num_right_drafts
    return True


def _soak(judge: Judge, first: int, minutes: float, most_requests: int) -> bool:
    tally = _Tally()
    said_s, seed, is_well = 0.0, first, True
    while is_well and tally.elapsed_s < 60 * minutes:
        is_well = _run(seed, most_requests, judge, tally)
        seed += 1
        if tally.elapsed_s > said_s + 10:
            said_s = tally.elapsed_s
            print(tally.line(judge), flush=True)
    print(f"{tally.line(judge)}, {0 if is_well else 1} differences; seeds {first} to {seed - 1}")
    return is_well


def main() -> int:
    parser = argparse.ArgumentParser(description="Look for an answer that is not the same bits.")
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--start", type=int, default=0, help="the first seed")
    parser.add_argument("--seed", type=int, help="only this one, again")
    parser.add_argument("--requests", type=int, default=64, help="most in one run")
    parser.add_argument("--model", default="demo")
    options = parser.parse_args()
    logging.getLogger("roost").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory(prefix="soak-") as cache_dir:
        judge = Judge(resolve_model(options.model), Path(cache_dir))
        try:
            if options.seed is None:
                is_well = _soak(judge, options.start, options.minutes, options.requests)
            else:
                is_well = _soak_one(judge, options.seed, options.requests)
        finally:
            judge.close()
    return 0 if is_well else 1


def _soak_one(judge: Judge, seed: int, most_requests: int) -> bool:
    tally = _Tally()
    is_well = _run(seed, most_requests, judge, tally)
    print(tally.line(judge))
    return is_well


if __name__ == "__main__":
    sys.exit(main())
