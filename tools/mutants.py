"""Plant faults in a copy of roost, one at a time, and see that the simulation finds each of them.

    python tools/mutants.py [--only WORD]

The first run is of the copy as it is, and must pass. A fault whose place is not found any more is
an error: the list is kept as true as the code.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Final

_ROOT: Final = Path(__file__).resolve().parents[1]
# The package is installed editable by a finder that would go before the copy.
_RUN: Final = """
import sys
sys.meta_path[:] = [f for f in sys.meta_path if type(f).__name__ != "ScikitBuildRedirectingFinder"]
sys.path.insert(0, sys.argv[1])
import pytest
import roost
assert roost.__file__.startswith(sys.argv[1]), roost.__file__

class Quick:
    # A fault is to be found, not to be told in few words.
    def pytest_configure(self):
        from hypothesis import Phase, settings
        settings.register_profile("mutants", phases=[Phase.generate], derandomize=True)
        settings.load_profile("mutants")

arguments = ["tests/sim", "-x", "-q", "--no-header", "-p", "no:cacheprovider"]
sys.exit(pytest.main(arguments, plugins=[Quick()]))
"""
_TIMEOUT_S: Final = 300


@dataclass(frozen=True, slots=True)
class Mutant:
    """`old` is in `file` (below src/roost) exactly once, and becomes `new`."""

    name: str
    file: str
    old: str
    new: str


MUTANTS: Final = (
    Mutant(
        "an output goes to the worker that was spoken to first",
        "worker/outbox.py",
        "self._waiting.setdefault(envelope.origin, []).append(output)",
        "self._waiting.setdefault(next(iter(self._waiting), envelope.origin), []).append(output)",
    ),
    Mutant(
        "a refusal forgets which worker asked",
        "sched/endings.py",
        "    return Addressed(envelope, ending_of(error, usage))",
        "    import msgspec\n\n"
        "    nowhere = msgspec.structs.replace(envelope.origin, worker=0, epoch=1)\n"
        "    lost = msgspec.structs.replace(envelope, origin=nowhere)\n"
        "    return Addressed(lost, ending_of(error, usage))",
    ),
    Mutant(
        "an answer to a call goes to whichever worker",
        "worker/control.py",
        "        self._told.append((message.origin, done))\n",
        "        self._told.append((type(message.origin)(0, 1), done))\n",
    ),
    Mutant(
        "a cancel is forgotten while the request is held",
        "sched/scheduler.py",
        "        if seq is None:\n            return []\n        outcome",
        "        if seq is None or (seq.turn is not None and seq.turn.is_held):\n"
        "            return []\n        outcome",
    ),
    Mutant(
        "a cancel is forgotten while the request is queued",
        "sched/scheduler.py",
        "        if seq is None:\n            return []\n        outcome",
        "        if seq is None or not seq.has_run:\n            return []\n        outcome",
    ),
    Mutant(
        "a cancel is forgotten while the request runs",
        "sched/scheduler.py",
        "        if seq is None:\n            return []\n        outcome",
        "        if seq is None or seq.num_generated:\n            return []\n        outcome",
    ),
    Mutant(
        "a cancel is forgotten while the request is retracted",
        "sched/scheduler.py",
        "        if seq is None:\n            return []\n        outcome",
        "        if seq is None or (seq.has_run and seq.lease is None):\n"
        "            return []\n        outcome",
    ),
    Mutant(
        "an abort is forgotten while the prompt is tokenised",
        "frontend/board.py",
        "self.end((rid,), Ended(Outcome.CLIENT_CANCELLED, message=text))",
        "del text",
    ),
    Mutant(
        "an abort is forgotten while the request is on its way",
        "frontend/board.py",
        "self._send(Cancel(self._origin, serial, is_disconnect=False, message=message))",
        "del serial",
    ),
    Mutant(
        "a client leaves and the engine is not told",
        "frontend/board.py",
        "            if life.is_sent:\n                self._send(Cancel(",
        "            if life.is_sent and not life.is_sent:\n                self._send(Cancel(",
    ),
    Mutant(
        "an abort takes a name for the beginning of one",
        "sched/roster.py",
        "if name and name in (seq.envelope.rid, seq.envelope.group)",
        "if name and seq.envelope.rid.startswith(name)",
    ),
    Mutant(
        "a request ends twice",
        "sched/scheduler.py",
        "        if turn is None:\n            return [said]",
        "        if turn is None:\n            return [said, said]",
    ),
    Mutant(
        "news of an ended request is taken for the next one of its rid",
        "frontend/ledger.py",
        "        if life is None or life.envelope.serial != output.serial:\n",
        "        if life is None:\n",
    ),
    Mutant(
        "pages leak when a retracted request ends",
        "sched/roster.py",
        "        self.running.remove(seq)\n        self._free(seq)\n",
        "        self.running.remove(seq)\n"
        "        if not seq.num_retractions:\n            self._free(seq)\n",
    ),
    Mutant(
        "a client that leaves is the server's fault",
        "core/outcome.py",
        'Ending("client", 499, "abort", False, logging.INFO)',
        'Ending("client", 499, "abort", False, logging.ERROR)',
    ),
    Mutant(
        "a health check is logged as traffic",
        "observe/log.py",
        "            level = logging.DEBUG\n",
        "            level = logging.INFO\n",
    ),
    Mutant(
        "a turn that was cancelled becomes part of its session",
        "sessions/tables.py",
        'return OUTCOMES[outcome].finish != "abort"',
        "return OUTCOMES[outcome].is_answer",
    ),
    Mutant(
        "a turn that failed keeps its place in the session",
        "sched/scheduler.py",
        "for other in self._sessions.drop(turn, now_s).dropped:",
        "for other in ():",
    ),
    Mutant(
        "a session that closes lets those that wait run",
        "sessions/session.py",
        "            if turn.state in (TurnState.HELD, TurnState.WAITING):\n",
        "            if turn.state is TurnState.HELD:\n",
    ),
    Mutant(
        "a turn goes on from its parent's prompt alone",
        "sessions/session.py",
        "        length = parent.num_prompt_tokens if wish.drops_output else parent.num_tokens\n",
        "        length = parent.num_prompt_tokens\n",
    ),
    Mutant(
        "nobody speaks for a worker that died",
        "worker/broadcasts.py",
        "answers = [self.note(origin, notice_id, 0) for notice_id in list(self._open)]",
        "answers: list[Closed | None] = []",
    ),
    Mutant(
        "a dead worker's requests run on",
        "worker/loop.py",
        "        said = self._scheduler.end_all(Outcome.CLIENT_DISCONNECTED, now_s, origin=origin)",
        "        said: list[Addressed] = []",
    ),
    Mutant(
        "a lost message is not made up for",
        "frontend/audits.py",
        "        if not silent:\n",
        "        if silent:\n",
    ),
    Mutant(
        "tokens that got lost are not missed",
        "frontend/ledger.py",
        "        _check_counts(life, event)\n",
        "",
    ),
    Mutant(
        "late output is an error",
        "frontend/late.py",
        "            cause = LateCause.CLIENT\n",
        "            raise KeyError(output.rid)\n",
    ),
    Mutant(
        "the receipt of a cancel is output of an unknown request",
        "frontend/late.py",
        "            record.is_receipt_due = False\n            return None\n",
        "            record.is_receipt_due, record.outcome = False, None\n",
    ),
    Mutant(
        "the limit of the queue holds for what is retracted",
        "sched/roster.py",
        "        self.running.remove(seq)\n        self.queue.push_front(seq)\n",
        "        self.running.remove(seq)\n"
        "        if not self.queue.is_full:\n            self.queue.push_front(seq)\n",
    ),
    Mutant(
        "a deadline counts only while the request waits",
        "sched/sequence.py",
        "        if self.envelope.deadline_s <= now_s:\n            return True\n",
        "        if self.envelope.deadline_s <= now_s and not self.has_run:\n"
        "            return True\n",
    ),
    Mutant(
        "what a sequence begins with is not held",
        "cache/holding.py",
        "        self._tree.hold(match.node, match.tail)\n",
        "        match.node.num_uses += 1\n",
    ),
    Mutant(
        "one token too many is matched in a page that is not full",
        "cache/radix.py",
        "return Match(node, tuple(pages), tail, num_tail_tokens)",
        "return Match(node, tuple(pages), tail, num_tail_tokens + (tail is not None))",
    ),
    Mutant(
        "a page that was evicted is still found",
        "cache/radix.py",
        "        del parent.children[node.key]\n",
        "",
    ),
    Mutant(
        "namespaces share what they compute",
        "cache/radix.py",
        "        key = namespace.encode()\n",
        "        key = namespace[:0].encode()\n",
    ),
    Mutant(
        "a page that is shared in part is not copied",
        "cache/holding.py",
        "self.copy = None if match.tail is None else (match.tail.page, lease.pages[0])",
        "self.copy = None",
    ),
    Mutant(
        "a flush leaves what is held to be found",
        "cache/radix.py",
        "        self._roots.clear()\n",
        "",
    ),
    Mutant(
        "a flush forgets nothing",
        "cache/holding.py",
        "        return self._tree.flush()\n",
        "        return self._tree.num_evictable\n",
    ),
    Mutant(
        "a token that was said and not computed counts as known",
        "cache/holding.py",
        "            tail = tokens[start:num_computed].tobytes()\n",
        "            tail = tokens[start : num_computed + 1][:15].tobytes()\n",
    ),
    Mutant(
        "a page is kept that the step which failed was to copy",
        "cache/holding.py",
        "num_computed > max(start, self.num_cached)",
        "num_computed > start",
    ),
    Mutant(
        "of two equal pages the one that was given back is used",
        "cache/holding.py",
        "            shared.append(self.node.page)\n",
        "            shared.append(page)\n",
    ),
    Mutant(
        "a turn that is gone still pins what it computed",
        "sessions/session.py",
        "            one.let_go()\n",
        "",
    ),
    Mutant(
        "a page below a pin that gave way is never given up",
        "cache/radix.py",
        "            # The page itself may be gone; then it is one above it that can be evicted.\n"
        "            self._offer(one)\n",
        "        self._offer(node)\n",
    ),
    Mutant(
        "prompt tokens are scored by logits that nobody computed",
        "sched/sequence.py",
        "        if prompt_from < 0 or self.num_generated > 0:\n",
        "        if prompt_from < 5 or self.num_generated > 0:\n",
    ),
    Mutant(
        "what is entered below a flushed page stays for ever",
        "cache/radix.py",
        "        if node.is_detached:\n            return node, False\n",
        "",
    ),
)


def _copy(to: Path) -> None:
    """The package as it is, and its compiled part, which is not changed here."""
    shutil.copytree(_ROOT / "src" / "roost", to / "roost", ignore=shutil.ignore_patterns("*.pyc"))
    spec = find_spec("roost._native")
    assert spec is not None, "roost is not installed"
    assert spec.origin is not None
    (to / "roost" / Path(spec.origin).name).symlink_to(spec.origin)


def _passes(copy: Path) -> tuple[bool, str]:
    """Whether the simulation finds nothing, and its last line."""
    command = [sys.executable, "-c", _RUN, str(copy)]
    try:
        done = subprocess.run(  # noqa: S603  our own interpreter
            command, cwd=_ROOT, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return False, f"no end in {_TIMEOUT_S} s"
    failed = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    assert done.returncode == 0 or failed, done.stdout + done.stderr
    return done.returncode == 0, failed[0] if failed else ""


def _plant(mutant: Mutant, copy: Path) -> Path:
    """Raises SystemExit when its place is not there, or not one."""
    path = copy / "roost" / mutant.file
    text = path.read_text()
    if text.count(mutant.old) != 1:
        raise SystemExit(f"{mutant.name}: its place is in {mutant.file} {text.count(mutant.old)}×")
    path.write_text(text.replace(mutant.old, mutant.new))
    return path


def _try(mutant: Mutant) -> bool:
    """Whether the fault is found, in a copy of its own."""
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        _copy(Path(folder))
        _plant(mutant, Path(folder))
        is_well, why = _passes(Path(folder))
    test = why.split(" - ")[0].rsplit("::", 1)[-1]
    mark = "MISSED" if is_well else "found"
    print(f"{mark:<7} {mutant.name:<68} {time.monotonic() - began_s:4.0f} s  {test}", flush=True)
    return not is_well


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--only", default="", help="faults whose name contains this")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    args = parser.parse_args()
    chosen = [mutant for mutant in MUTANTS if args.only in mutant.name]
    with tempfile.TemporaryDirectory() as folder:
        _copy(Path(folder))
        for mutant in chosen:
            shutil.copy(_ROOT / "src" / "roost" / mutant.file, _plant(mutant, Path(folder)))
        is_well, why = _passes(Path(folder))
    if not is_well:
        print(f"without a fault it fails: {why}")
        return 1
    with ThreadPoolExecutor(args.jobs) as pool:
        num_found = sum(pool.map(_try, chosen))
    print(f"{num_found}/{len(chosen)} found")
    return num_found != len(chosen)


if __name__ == "__main__":
    sys.exit(main())
