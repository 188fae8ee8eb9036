"""What prompt-lookup speculation gains, and what it costs where there is nothing to gain.

    python -m bench.speculate [--rounds 3] [--threads N] [--new 192]

Two engines in this process, with and without speculation, answer the same requests in turns, one
at a time. `edit`: a file of code to be written again, greedy, so that most of the answer is in the
prompt. `free`: a story is begun and goes on at temperature 0.8. `again`: the requests of `edit` a
second time, which the prefix tree has seen. For each: new tokens a second behind the first, medians
over rounds and texts; the median of the ratios within a pair; steps for each hundred tokens. The
answers of both are compared.
"""

import argparse
import statistics
from dataclasses import dataclass, field
from pathlib import Path

from roost import Engine, SamplingParams

_CODE = Path(__file__).parents[1] / "src" / "roost"
_FILES = ("sched/deadlines.py", "cache/lease.py", "core/clock.py", "kernels/cgroup.py")
_MOST_LINES = 60
_FREE = (
    "The lighthouse keeper had not spoken to anybody for eleven days when",
    "On the morning of the market the baker's youngest daughter found that",
    "Nobody in the village could say who had built the stone bridge, but",
    "It was the last train of the evening, and the only other passenger was",
)


@dataclass
class Figures:
    """Of one kind of request."""

    plain: list[float] = field(default_factory=list)
    drafted: list[float] = field(default_factory=list)
    num_steps: int = 0
    num_tokens: int = 0

    def line(self, name: str) -> str:
        ratios = [a / b for a, b in zip(self.drafted, self.plain, strict=True)]
        return (
            f"{name:6} off {statistics.median(self.plain):7.1f} tokens/s"
            f"   ngram {statistics.median(self.drafted):7.1f} tokens/s"
            f"   ratio {statistics.median(ratios):5.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
            f"   {100 * self.num_steps / self.num_tokens:5.1f} steps for 100 tokens"
        )


def edit_prompt(name: str) -> str:
    lines = (_CODE / name).read_text().splitlines()[:_MOST_LINES]
    code = "\n".join(lines)
    return (
        f"The file before:\n```python\n{code}\n```\n\n"
        f"The file after, every line as it was:\n```python\n" + "\n".join(lines[:3]) + "\n"
    )


def speed(engine: Engine, prompt: str, sampling: SamplingParams) -> tuple[float, tuple[int, ...]]:
    """New tokens a second behind the first, and the answer."""
    found = engine.generate(prompt, sampling)
    assert found.first_token_s is not None, "no answer"
    return (len(found.token_ids) - 1) / (found.total_s - found.first_token_s), found.token_ids


def measure(
    engines: tuple[Engine, Engine], prompts: list[str], sampling: SamplingParams, figures: Figures
) -> None:
    plain, drafted = engines
    for index, prompt in enumerate(prompts):
        found = {}
        for engine in engines if index % 2 else engines[::-1]:
            before = num_steps(engine)
            found[engine] = speed(engine, prompt, sampling)
            if engine is drafted:
                figures.num_steps += num_steps(engine) - before - 1
        assert found[plain][1] == found[drafted][1], "another answer"
        figures.num_tokens += len(found[drafted][1]) - 1
        figures.plain.append(found[plain][0])
        figures.drafted.append(found[drafted][0])


def num_steps(engine: Engine) -> int:
    return engine._worker._scheduler.load().num_steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--new", type=int, default=192)
    args = parser.parse_args()
    edit, free, again = Figures(), Figures(), Figures()

    def engine(speculate: str) -> Engine:
        return Engine("demo", speculate=speculate, threads=args.threads, max_total_tokens=16384)

    with engine("off") as plain, engine("ngram") as drafted:
        engines = (plain, drafted)
        for number in range(args.rounds):
            # So that no round finds the prompts of another.
            codes = [f"Round {number}. {edit_prompt(name)}" for name in _FILES]
            greedy = SamplingParams(temperature=0.0, max_new_tokens=args.new, ignore_eos=True)
            measure(engines, codes, greedy, edit)
            measure(engines, codes, greedy, again)
            drawn = SamplingParams(
                temperature=0.8, max_new_tokens=args.new, ignore_eos=True, seed=number
            )
            measure(engines, [f"{number}. {text}" for text in _FREE], drawn, free)
    for name, figures in (("edit", edit), ("free", free), ("again", again)):
        print(figures.line(name))


if __name__ == "__main__":
    main()
