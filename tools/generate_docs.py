"""Rewrites the parts of docs/ that are made from the code: settings, life cycle, outcomes.

python tools/generate_docs.py           rewrite
python tools/generate_docs.py --check   exit 1, and say which, if a page is not current
"""

import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

from roost.api.endings import EndingShape, shape_of
from roost.core.config import Setting, all_settings, shown
from roost.core.lifecycle import TRANSITIONS
from roost.core.outcome import OUTCOMES

DOCS: Final = Path(__file__).parent.parent / "docs"

_PART_TITLES: Final = {
    "model": "Model",
    "server": "Server",
    "engine": "Engine",
    "log": "Log",
}


def settings_table() -> str:
    """Every setting: flag, values, default, meaning."""
    lines = []
    for part, title in _PART_TITLES.items():
        lines += [f"### {title}", "", "| flag | values | default | |", "|---|---|---|---|"]
        lines += [_setting_row(s) for s in all_settings() if s.part == part]
        lines.append("")
    return "\n".join(lines).rstrip()


def _setting_row(setting: Setting) -> str:
    kinds = {"text": "text", "texts": "texts", "integer": "integer", "number": "number"}
    values = " · ".join(f"`{c}`" for c in setting.choices) or kinds[setting.kind]
    default = shown(setting, setting.default)
    default = default if default == "–" else f"`{default}`"
    return f"| `{setting.flag}` | {values} | {default} | {setting.help} |"


def lifecycle_diagram() -> str:
    """The states and moves of `roost.core.lifecycle.TRANSITIONS`."""
    lines = ["```mermaid", "stateDiagram-v2", "    [*] --> SENT"]
    for state, moves in TRANSITIONS.items():
        for event, target in moves.items():
            lines.append(f"    {state.name} --> {target.name}: {event.__name__}")
        if not moves:
            lines.append(f"    {state.name} --> [*]")
    return "\n".join([*lines, "```"])


def outcome_table() -> str:
    """The table of `roost.core.outcome.OUTCOMES`."""
    lines = [
        "| outcome | whose doing | HTTP before a byte | native finish | answer | level | fault |",
        "|---|---|---|---|---|---|---|",
    ]
    for outcome, ending in OUTCOMES.items():
        status = f"({ending.http_status})" if ending.http_status == 499 else ending.http_status
        is_answer = "yes" if ending.is_answer else "no"
        fault = "**yes**" if ending.is_server_fault else "no"
        level = logging.getLevelName(ending.log_level)
        lines.append(
            f"| `{outcome}` | {ending.whose} | {status} | `{ending.finish}` | {is_answer} "
            f"| {level} | {fault} |"
        )
    return "\n".join(lines)


def shapes_table() -> str:
    """What each API says of each ending, as `roost.api.endings` derives it."""
    lines = [
        "| outcome | native `/generate` | OpenAI | Anthropic |",
        "|---|---|---|---|",
    ]
    for outcome in OUTCOMES:
        shapes = shape_of(outcome)
        cells = [_shown_shape(s) for s in (shapes.native, shapes.openai, shapes.anthropic)]
        lines.append(f"| `{outcome}` | {' | '.join(cells)} |")
    return "\n".join(lines)


def _shown_shape(shape: EndingShape) -> str:
    if shape.status == 499:  # nobody is there to read it
        return "–"
    if shape.error_type is None:
        return f"{shape.status} `{shape.reason}`"
    code = "" if shape.error_code is None else f", code `{shape.error_code}`"
    return f"{shape.status} error `{shape.error_type}`{code}"


PARTS: Final[dict[str, dict[str, Callable[[], str]]]] = {
    "configuration.md": {"settings": settings_table},
    "lifecycle.md": {
        "diagram": lifecycle_diagram,
        "outcomes": outcome_table,
        "shapes": shapes_table,
    },
}


def current(page: str) -> str:
    """The page's text with its generated parts as the code has them now."""
    text = (DOCS / page).read_text(encoding="utf-8")
    for name, make in PARTS[page].items():
        begin, end = f"<!-- {name}: generated -->", f"<!-- {name}: end -->"
        before, found, rest = text.partition(begin)
        assert found, f"docs/{page} has no {begin}"
        _, found, after = rest.partition(end)
        assert found, f"docs/{page} has no {end}"
        text = f"{before}{begin}\n{make()}\n{end}{after}"
    return text


def main() -> int:
    """The exit code."""
    is_check = "--check" in sys.argv[1:]
    stale = []
    for page in PARTS:
        text = current(page)
        if text != (DOCS / page).read_text(encoding="utf-8"):
            stale.append(page)
            if not is_check:
                (DOCS / page).write_text(text, encoding="utf-8")
    for page in stale:
        print(f"docs/{page} {'is not current: run `make docs`' if is_check else 'rewritten'}")
    return 1 if is_check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
