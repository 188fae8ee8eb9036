"""What this machine can do at most, and how the linear layers stand to it.

    python -m bench.limits [--threads N]

Runs native/bench/limits.cpp and native/bench/linear.cpp; see there how each figure is made.
"""

import argparse
import json
import os
import subprocess
from dataclasses import dataclass

from bench.native import built


@dataclass(frozen=True)
class Limit:
    """The most that so many threads reach together; 0 where this machine has no such figure."""

    threads: int
    dram_gb_s: float
    l3_gb_s: float
    int8_gmac_s: float
    f32_gmac_s: float


@dataclass(frozen=True)
class Pass:
    """One pass of `rows` rows over all linear layers of SmolLM2-135M's shape, in Q4_1."""

    rows: int
    nbytes: float
    macs: float
    seconds: float

    @property
    def gmac_s(self) -> float:
        return self.macs / self.seconds / 1e9

    @property
    def macs_per_byte(self) -> float:
        """Multiply-adds for each byte of weights that is read."""
        return self.macs / self.nbytes


@dataclass(frozen=True)
class Machine:
    """What was measured of the machine. limits: of one thread, then of all."""

    isa: str
    limits: tuple[Limit, ...]
    passes: tuple[Pass, ...]

    @property
    def all_threads(self) -> Limit:
        return self.limits[-1]


def prepare() -> None:
    """Build what `measure` runs, which takes minutes the first time. Raises BuildFailed."""
    for program in ("limits", "linear"):
        built(program)


def measure(threads: int | None = None) -> Machine:
    """Takes about 15 seconds, and what `prepare` takes. Raises BuildFailed."""
    flags = ["--threads", str(threads or len(os.sched_getaffinity(0)))]
    found = json.loads(_output("limits", *flags))
    passes = [json.loads(line) for line in _output("linear", *flags, "--json", "all").splitlines()]
    return Machine(
        found["isa"],
        tuple(Limit(**limit) for limit in found["limits"]),
        tuple(Pass(**made) for made in passes),
    )


def _output(program: str, *flags: str) -> str:
    made = subprocess.run([built(program), *flags], check=True, capture_output=True, text=True)
    return made.stdout


def main() -> None:
    parser = argparse.ArgumentParser(description="What this machine can do at most.")
    parser.add_argument("--threads", type=int)
    machine = measure(parser.parse_args().threads)
    print(text_of(machine))


def text_of(machine: Machine) -> str:
    """The limits and the linear layers' passes as lines for people."""
    lines = [f"limits of the machine ({machine.isa}):"]
    for limit in machine.limits:
        lines.append(
            f"  {limit.threads} thread(s): DRAM {limit.dram_gb_s:.1f} GB/s, L3 {limit.l3_gb_s:.1f}"
            f" GB/s, int8 {limit.int8_gmac_s:,.0f} GMAC/s, f32 {limit.f32_gmac_s:,.0f} GMAC/s"
        )
    lines.append("linear layers alone, all threads:")
    best = machine.all_threads.int8_gmac_s
    for made in machine.passes:
        share = f", {made.gmac_s / best:4.0%} of int8" if best else ""
        lines.append(
            f"  {made.rows:3} rows: {made.rows / made.seconds:9,.0f} rows/s"
            f" {made.nbytes / made.seconds / 1e9:6.1f} GB/s {made.gmac_s:7.1f} GMAC/s{share}"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
