"""The plots of a run as SVG texts: bars of ratios, and a roofline.

Drawn by hand: two pictures need no plotting library.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

from bench.limits import Machine, Pass

_INK, _PALE, _OURS, _LESS = "#222222", "#cccccc", "#2a6f97", "#c1666b"
_FONT = 'font-family="sans-serif" font-size="12"'


@dataclass(frozen=True)
class Bar:
    """A ratio with its spread, and whom it is to."""

    name: str
    value: float
    least: float
    most: float
    peer: str


def _text(x: float, y: float, text: str, anchor: str = "start", size: int = 12) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}"'
        f' fill="{_INK}">{escape(text)}</text>'
    )


def _line(x1: float, y1: float, x2: float, y2: float, stroke: str = _PALE, more: str = "") -> str:
    return (
        f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{stroke}" {more}/>'
    )


def _box(x: float, y: float, width: float, colour: str) -> str:
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="16" fill="{colour}"/>'


def _picture(width: int, height: int, parts: Sequence[str]) -> str:
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}"'
        f' width="{width}" height="{height}" {_FONT}>'
    )
    ground = f'<rect width="{width}" height="{height}" fill="white"/>'
    return "\n".join([head, ground, *parts, "</svg>"]) + "\n"


def bars(title: str, values: Sequence[Bar]) -> str:
    """Horizontal bars from 0; a line at 1, where both are equal; whiskers from least to most."""
    left, right, top, step = 300, 170, 60, 24
    width = 900
    height = top + step * len(values) + 40
    most = max(1.0, *(bar.most for bar in values))
    scale = (width - left - right) / most
    bottom = top + step * len(values)
    parts = [_text(20, 28, title, size=16)]
    # About six marks, at round numbers.
    mark = next((m for m in (0.5, 1, 2, 5, 10, 20, 50) if most / m <= 7), 100)
    for i in range(1, int(most / mark) + 1):
        x = left + scale * mark * i
        parts += [_line(x, top - 8, x, bottom), _text(x, bottom + 16, f"{mark * i:g}", "middle")]
    for i, bar in enumerate(values):
        y = top + step * i
        colour = _OURS if bar.value >= 1 else _LESS
        end = left + scale * bar.most
        parts += [
            _text(left - 8, y + 12, bar.name, "end"),
            _box(left, y, scale * bar.value, colour),
            _line(left + scale * bar.least, y + 8, end, y + 8, _INK, 'stroke-width="2"'),
            _text(max(end, left) + 8, y + 12, f"{bar.value:.2f} {bar.peer}"),
        ]
    parts.append(_line(left + scale, top - 8, left + scale, bottom, _INK, 'stroke-width="1.5"'))
    return _picture(width, height, parts)


def _log_axis(low: float, high: float, start: float, end: float) -> Callable[[float], float]:
    """A position between `start` and `end` for a value between `low` and `high`."""

    def place(value: float) -> float:
        share = (math.log10(value) - math.log10(low)) / (math.log10(high) - math.log10(low))
        return start + (end - start) * share

    return place


def roofline(machine: Machine) -> str:
    """Multiply-adds a second over multiply-adds for each byte of weights, both logarithmic.

    The roofs are what was measured: the slopes are DRAM and L3, the tops int8 and f32.
    """
    limit = machine.all_threads
    width, height, left, top, right, bottom = 820, 520, 80, 60, 790, 450
    low_x, high_x = 0.5, 2_000.0
    low_y = 10 ** math.floor(math.log10(min(made.gmac_s for made in machine.passes) / 2))
    high_y = 10 ** math.ceil(math.log10(limit.int8_gmac_s * 1.2))
    x_of = _log_axis(low_x, high_x, left, right)
    y_of = _log_axis(low_y, high_y, bottom, top)
    parts = [
        _text(20, 28, f"Linear layers of SmolLM2-135M, Q4_1, {machine.isa}", size=16),
        _text((left + right) / 2, 492, "multiply-adds for each byte of weights", "middle"),
        _text(12, top - 6, "GMAC/s"),
    ]
    for x in (1.0, 10.0, 100.0, 1_000.0):
        parts += [
            _line(x_of(x), top, x_of(x), bottom),
            _text(x_of(x), bottom + 18, f"{x:g}", "middle"),
        ]
    y = low_y
    while y <= high_y:
        parts += [
            _line(left, y_of(y), right, y_of(y)),
            _text(left - 8, y_of(y) + 4, f"{y:g}", "end"),
        ]
        y *= 10
    for name, gb_s, dash in (("DRAM", limit.dram_gb_s, ""), ("L3", limit.l3_gb_s, "6 4")):
        begin = max(low_x, low_y / gb_s)
        ridge = limit.int8_gmac_s / gb_s
        parts += [
            _line(
                x_of(begin),
                y_of(begin * gb_s),
                x_of(ridge),
                y_of(limit.int8_gmac_s),
                _INK,
                f'stroke-width="1.5" stroke-dasharray="{dash or "none"}"',
            ),
        ]
        at = begin * 1.3
        up = name == "L3"
        parts.append(
            _text(
                x_of(at) + (-8 if up else 8),
                y_of(at * gb_s) + (-4 if up else 14),
                f"{name} {gb_s:.0f} GB/s",
                "end" if up else "start",
            )
        )
    for name, peak in (("int8", limit.int8_gmac_s), ("f32", limit.f32_gmac_s)):
        begin = peak / limit.l3_gb_s
        parts += [
            _line(x_of(begin), y_of(peak), right, y_of(peak), _INK, 'stroke-width="1.5"'),
            _text(right, y_of(peak) - 6, f"{name} {peak:,.0f} GMAC/s", "end"),
        ]
    parts += [_point(made, x_of, y_of) for made in machine.passes]
    return _picture(width, height, parts)


def _point(made: Pass, x_of: Callable[[float], float], y_of: Callable[[float], float]) -> str:
    x, y = x_of(made.macs_per_byte), y_of(made.gmac_s)
    dot = f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{_OURS}"/>'
    rows = "row" if made.rows == 1 else "rows"
    return dot + _text(x + 7, y + 14, f"{made.rows} {rows}")
