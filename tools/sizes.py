"""List what is too big to be read at once; fail when something new joins the list.

Limits: 400 lines a module, 60 lines a function, 10 public methods a class. `ALLOWED` holds what is
big for a reason, with that reason; it may only shrink.
"""

import ast
import subprocess
import sys
from pathlib import Path
from typing import Final

MAX_MODULE_LINES: Final = 400
MAX_FUNCTION_LINES: Final = 60
MAX_PUBLIC_METHODS: Final = 10

ALLOWED: Final[dict[str, str]] = {
    "src/roost/programs/cpu.py:CpuBuilder": "one method for each op of the Builder interface",
    "src/roost/sched/scheduler.py:Scheduler": "one verb for each thing that can happen",
}


def tracked() -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "src", "native", "tools", "bench"],  # noqa: S607
        capture_output=True,
        text=True,
        check=True,
    )
    return [Path(line) for line in listed.stdout.splitlines() if Path(line).exists()]


def findings(path: Path) -> list[str]:
    text = path.read_text()
    found = []
    if (lines := text.count("\n")) > MAX_MODULE_LINES:
        found.append(f"{path}: {lines} lines")
    if path.suffix != ".py":
        return found
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            size = (node.end_lineno or node.lineno) - node.lineno + 1
            if size > MAX_FUNCTION_LINES:
                found.append(f"{path}:{node.name}: {size} lines")
        elif isinstance(node, ast.ClassDef) and not any(
            isinstance(base, ast.Name) and base.id == "Protocol" for base in node.bases
        ):
            public = [
                f
                for f in node.body
                if isinstance(f, ast.FunctionDef | ast.AsyncFunctionDef)
                and not f.name.startswith("_")
                and not f.decorator_list
            ]
            if len(public) > MAX_PUBLIC_METHODS:
                found.append(f"{path}:{node.name}: {len(public)} public methods")
    return found


def main() -> int:
    sources = [p for p in tracked() if p.suffix in {".py", ".cpp", ".h"}]
    big = [line for path in sources for line in findings(path)]
    fresh = [line for line in big if line.rsplit(": ", 1)[0] not in ALLOWED]
    for line in fresh:
        print(f"too big: {line}")
    stale = set(ALLOWED) - {line.rsplit(": ", 1)[0] for line in big}
    for name in sorted(stale):
        print(f"no longer big, take it off the list in tools/sizes.py: {name}")
    return 1 if fresh or stale else 0


if __name__ == "__main__":
    sys.exit(main())
