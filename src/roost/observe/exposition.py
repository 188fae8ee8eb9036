"""Prometheus' text format, version 0.0.4.

https://prometheus.io/docs/instrumenting/exposition_formats/
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

from roost.observe.series import Count, Spread


@dataclass(frozen=True, slots=True)
class Figure:
    """A gauge that is not counted: somebody said it."""

    name: str
    help: str
    value: float


def exposition(
    series: Sequence[Count | Spread], numbers: Sequence[float], figures: Sequence[Figure]
) -> bytes:
    """All of them. numbers: those of a row, or sums of rows."""
    lines: list[str] = []
    for one in series:
        own = numbers[one.at : one.at + one.width]
        lines += _count(one, own) if isinstance(one, Count) else _spread(one, own)
    for figure in figures:
        lines += (*_head(figure.name, figure.help, "gauge"), f"{figure.name} {figure.value!r}")
    return ("\n".join(lines) + "\n").encode()


def _head(name: str, text: str, kind: str) -> tuple[str, str]:
    return f"# HELP {name} {text}", f"# TYPE {name} {kind}"


def _count(count: Count, numbers: Sequence[float]) -> Iterator[str]:
    yield from _head(count.name, count.help, "gauge" if count.is_live else "counter")
    labels = [f'{{{count.label}="{value}"}}' for value in count.values] or [""]
    for label, number in zip(labels, numbers, strict=True):
        yield f"{count.name}{label} {number!r}"


def _spread(spread: Spread, numbers: Sequence[float]) -> Iterator[str]:
    yield from _head(spread.name, spread.help, "histogram")
    *buckets, total = numbers
    bounds = [*(repr(float(bound)) for bound in spread.bounds), "+Inf"]
    num_so_far = 0.0
    for bound, num_so_far in zip(bounds, accumulate(buckets), strict=True):
        yield f'{spread.name}_bucket{{le="{bound}"}} {num_so_far!r}'
    yield f"{spread.name}_count {num_so_far!r}"
    yield f"{spread.name}_sum {total!r}"
