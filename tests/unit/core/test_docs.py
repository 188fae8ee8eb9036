"""The documentation says what the code says."""

import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PAGES = [*sorted((ROOT / "docs").rglob("*.md")), *sorted(ROOT.glob("*.md"))]


def test_generated_pages_are_current() -> None:
    script = [sys.executable, str(ROOT / "tools" / "generate_docs.py"), "--check"]
    done = subprocess.run(script, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_name_of_the_code_in_it_exists(page: Path) -> None:
    for name in set(re.findall(r"`(roost(?:\.\w+)+)`", page.read_text(encoding="utf-8"))):
        assert _exists(name), f"{page.name}: {name}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_leads_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_every_flag_in_the_docs_is_one() -> None:
    from roost.core.config import all_settings

    flags = {s.flag for s in all_settings()} | {"--config", "--explain", "--url", "--version"}
    for page in PAGES:
        for flag in re.findall(r"`(?:roost \w+ )?(--[a-z-]+)", page.read_text(encoding="utf-8")):
            assert flag in flags, f"{page.name}: {flag}"


def _exists(name: str) -> bool:
    parts = name.split(".")
    for cut in range(len(parts), 0, -1):
        try:
            found: object = importlib.import_module(".".join(parts[:cut]))
        except ModuleNotFoundError:
            continue
        for part in parts[cut:]:
            if not hasattr(found, part):
                return False
            found = getattr(found, part)
        return True
    return False
