"""From samples to a table: medians, and roost's ratio to the best peer with its spread.

A sample is one figure of one server in one round. Ratios are taken within a round, because a
machine's speed wanders from round to round; above 1 is always better for roost, so that for times
and memory it is the peer's figure over roost's. The best peer of a row is that with the best
median; where it did not take part in a round (see `bench/serve.py`), its median stands in.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

OURS = "roost"


@dataclass(frozen=True)
class Row:
    """A line of the table. against: the peers' row to compare with, if it is not the same."""

    key: str
    title: str
    more_is_better: bool
    digits: int = 0
    against: str = ""


@dataclass(frozen=True)
class Sample:
    """One figure: whose, of which round (from 0), of which row."""

    label: str
    round_number: int
    row: str
    value: float


@dataclass(frozen=True)
class Ratio:
    """roost's figure to the best peer's: of the medians, and the least and most of a round."""

    peer: str
    median: float
    least: float
    most: float
    rounds: int


def batch_rows(streams: int) -> tuple[Row, ...]:
    name = f"batch{streams}"
    return (
        Row(name, f"{streams} streams, out tok/s", more_is_better=True),
        Row(f"{name} itl", "  mean ms between tokens", more_is_better=False, digits=1),
        Row(f"{name} p99", "  p99 ms between tokens", more_is_better=False, digits=1),
        Row(f"{name} p99/median", "  p99 / median", more_is_better=False, digits=2),
        Row(f"{name} ttft", "  mean ms to the first", more_is_better=False),
    )


ROWS = (
    Row("single", "one stream, tok/s", more_is_better=True),
    Row("single_ngram", "  roost with speculation", more_is_better=True, against="single"),
    Row("single ttft", "  ms to the first of 128+128", more_is_better=False, digits=1),
    Row("prefill512", "prompt of 512, tok/s", more_is_better=True),
    Row("prefill2048", "prompt of 2,048, tok/s", more_is_better=True),
    *batch_rows(16),
    *batch_rows(64),
    Row("shared", "32 x (1,024 shared + 32), cold, out tok/s", more_is_better=True),
    Row("shared_warm", "  warm", more_is_better=True),
    Row("tiny", "max_tokens 1, 32 in flight, requests/s", more_is_better=True),
    Row("tiny4", "  roost with 4 HTTP workers", more_is_better=True, against="tiny"),
    Row("start first", "start to first token s, nothing packed", False, 2, against="start"),
    Row("start", "  again", more_is_better=False, digits=2),
    Row("memory", "memory MB, started", more_is_better=False),
    Row("memory loaded", "  after one stream, prompts, 16 streams", more_is_better=False),
)


def median(samples: Sequence[Sample], label: str, row: str) -> float | None:
    """Of a row's rounds; None of none."""
    values = list(by_round(samples, label, row).values())
    return statistics.median(values) if values else None


def by_round(samples: Sequence[Sample], label: str, row: str) -> dict[int, float]:
    """Round → the median of its samples (several, where a round has several starts)."""
    found: dict[int, list[float]] = {}
    for sample in samples:
        if sample.label == label and sample.row == row:
            found.setdefault(sample.round_number, []).append(sample.value)
    return {number: statistics.median(values) for number, values in sorted(found.items())}


def ratio_of(samples: Sequence[Sample], row: Row, peers: Sequence[str]) -> Ratio | None:
    """None where roost or every peer has no figure."""
    theirs_key = row.against or row.key
    medians = {peer: median(samples, peer, theirs_key) for peer in peers}
    known = {peer: value for peer, value in medians.items() if value}
    ours = by_round(samples, OURS, row.key)
    if not known or not ours:
        return None
    best = (max if row.more_is_better else min)(known, key=lambda peer: known[peer])
    theirs = by_round(samples, best, theirs_key)

    def better(our: float, their: float) -> float:
        return our / their if row.more_is_better else their / our

    ratios = [better(our, theirs.get(number, known[best])) for number, our in ours.items() if our]
    if not ratios:
        return None
    middle = better(statistics.median(ours.values()), known[best])
    return Ratio(best, middle, min(ratios), max(ratios), len(ratios))


def table(samples: Sequence[Sample], peers: Sequence[str]) -> str:
    """All rows that somebody has a figure of, in Markdown."""
    lines = [["", OURS, *peers, "ratio to the best peer (least to most of a round)"]]
    for row in ROWS:
        values = [median(samples, label, row.key) for label in (OURS, *peers)]
        if all(value is None for value in values):
            continue
        ratio = ratio_of(samples, row, peers)
        told = "–"
        if ratio:
            told = f"{ratio.median:.2f} ({ratio.least:.2f}–{ratio.most:.2f}) {ratio.peer}"
        cells = ("–" if value is None else f"{value:,.{row.digits}f}" for value in values)
        lines.append([row.title, *cells, told])
    return aligned(lines)


def aligned(lines: list[list[str]]) -> str:
    """A Markdown table; the first line is its head."""
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    texts = [
        "| " + " | ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)) + " |"
        for line in lines
    ]
    texts.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(texts)
