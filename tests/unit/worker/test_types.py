"""No output without an address: the type checker refuses what would forget it."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]

# What mypy has to say of a line stands behind it; of the others it must say nothing.
SNIPPET = """\
import math

from roost.core.events import Accepted, Delta
from roost.core.request import NO_LOGPROBS, Envelope, GenerateRequest, Origin, RequestId
from roost.sched import Addressed
from roost.wire.messages import Cancel, Control, Output, Outputs
from roost.core.calls import Resume
from roost.worker import Outbox


def say(outbox: Outbox, request: GenerateRequest, known: Envelope | None) -> None:
    event = Delta(0, (1,))
    rid = RequestId("a")
    outbox.send(request.envelope, event)
    outbox.send(event)  # call-arg arg-type
    outbox.send(None, event)  # arg-type
    outbox.send(known, event)  # arg-type
    outbox.send(rid, event)  # arg-type
    outbox.tell(None, Outputs(()))  # arg-type
    Output(event)  # call-arg arg-type
    Output(rid, event)  # call-arg arg-type
    Output("a", 1, event)  # arg-type
    Output(rid, None, event)  # arg-type
    Addressed(request.envelope, Accepted())
    Addressed(event)  # call-arg arg-type
    Addressed(None, event)  # arg-type
    here = Origin(0, 1)
    Envelope(rid, here, 1, 0.0, math.inf, 0, "")
    Envelope(rid=rid, serial=1, arrival_s=0.0, deadline_s=9.0, priority=0, trace="")  # call-arg
    Envelope(rid=rid, origin=here, arrival_s=0.0, deadline_s=9.0, priority=0, trace="")  # call-arg
    Envelope(rid, None, 1, 0.0, math.inf, 0, "")  # arg-type
    Envelope(rid, here, None, 0.0, math.inf, 0, "")  # arg-type
    request.envelope.origin = here  # misc
    Control(here, "c1", Resume())
    Control("c1", Resume())  # call-arg arg-type
    Cancel(serial=1, is_disconnect=True)  # call-arg
    Origin(0)  # call-arg
"""


def test_what_would_forget_an_address_does_not_type_check(tmp_path: Path) -> None:
    source = tmp_path / "forgetful.py"
    source.write_text(SNIPPET)
    # In a process of its own, which leaves no settings of mypy behind in this one.
    ran = subprocess.run(
        [sys.executable, "-m", "mypy", "--no-error-summary", "--hide-error-context", source],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.stderr == ""
    found: dict[int, set[str]] = {}
    for line in ran.stdout.splitlines():
        match = re.fullmatch(r".*forgetful\.py:(\d+): error: .*\[([a-z-]+)\]", line)
        if match:
            found.setdefault(int(match[1]), set()).add(match[2])
    # Which of its complaints comes first is mypy's affair; that there is one, and where, is not.
    allowed = {
        number: set(line.partition("  # ")[2].split())
        for number, line in enumerate(SNIPPET.splitlines(), 1)
        if "  # " in line
    }
    assert found.keys() == allowed.keys(), ran.stdout
    assert all(found[number] <= allowed[number] for number in found), ran.stdout


def called_names(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call):
            match node.func:
                case ast.Name(id=name) | ast.Attribute(attr=name):
                    yield name


def test_outputs_are_made_in_the_outbox_and_nowhere_else() -> None:
    sources = sorted((ROOT / "src" / "roost").rglob("*.py"))
    makers = {
        str(path.relative_to(ROOT / "src"))
        for path in sources
        if {"Output", "Outputs"} & set(called_names(path))
    }
    assert makers == {"roost/worker/outbox.py"}


def test_the_names_of_outputs_have_no_other_names() -> None:
    renamed = {
        (path.name, alias.name)
        for path in (ROOT / "src" / "roost").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if alias.name in {"Output", "Outputs"} and alias.asname not in {None, alias.name}
    }
    assert renamed == set()
