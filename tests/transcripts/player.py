"""Plays scheduler transcripts: `command`, a line of dashes, what came of it, an empty line.

    python -m tests.transcripts.player FILE …

rewrites the files with what happens now, for review as a diff. Commands:

    desk pages=8 step=32 running=4 queued=10 context=512 growth=128 queue_timeout=5
        session_timeout=9 speculates=yes policy=fair   (any of them, first; growth=-1: learned)
    submit NAME prompt=N new=N [first=N] [min=N] [stop=TEXT] [stop_id=N] [seed=N] [deadline=S]
        [group=TEXT] [priority=N] [tenant=TEXT] [session=ID [after=NAME] [offset=N]
        [drops_output] [replaces] [clamped]]
    cancel NAME · leave NAME · abort NAME · abort · fault NAME · crash · retract
    open ID [capacity=N] [timeout=S] · close ID · sessions
    wait S · step [N] · load
"""

import sys
from pathlib import Path
from typing import Final, get_args

from tests.sim.desk import Desk, shown
from tests.sim.requests import request, sampling

from roost.core.errors import RequestError
from roost.core.plan import BatchPlan
from roost.core.request import RequestId, SessionTurn
from roost.sched import Addressed, PolicyName
from roost.sessions import SessionView

POLICIES: Final[dict[str, PolicyName]] = {name: name for name in get_args(PolicyName)}


class Player:
    def __init__(self) -> None:
        self.desk = Desk()

    def play(self, command: str) -> str:
        verb, *words = command.split()
        facts = dict(word.split("=", 1) for word in words if "=" in word)
        names = [word for word in words if "=" not in word]
        match verb:
            case "desk":
                self.desk = _desk(facts)
                return ""
            case "submit":
                return _lines(self._submit(names[0], facts, set(names[1:])))
            case "cancel" | "leave":
                return _lines(self.desk.cancel(names[0], is_disconnect=verb == "leave"))
            case "abort":
                return _lines(self.desk.abort(names[0] if names else None))
            case "open" | "close":
                return self._open_or_close(verb, names[0], facts)
            case "sessions":
                return "\n".join(map(_session, self.desk.scheduler.sessions(self.desk.now_s)))
            case "retract":
                return _lines(self.desk.hear(self.desk.scheduler.retract_all(self.desk.now_s)))
            case "fault":
                self.desk.runner.faults.add(names[0])
                return ""
            case "crash":
                self.desk.runner.fail_next = True
                return ""
            case "wait":
                self.desk.now_s += float(names[0])
                return _lines(self.desk.expire())
            case "step":
                num_steps = int(names[0]) if names else 1
                return "\n".join(_step(*self.desk.step()) for _ in range(num_steps))
            case "load":
                load = self.desk.scheduler.load()
                return (
                    f"running={load.num_running} waiting={load.num_waiting} "
                    f"pages={load.num_used_pages}/{load.num_pages}"
                )
        raise AssertionError(f"no such command: {command}")

    def _open_or_close(self, verb: str, session_id: str, facts: dict[str, str]) -> str:
        try:
            if verb == "close":
                return _lines(self.desk.close(session_id))
            timeout_s = float(facts["timeout"]) if "timeout" in facts else None
            capacity_chars = int(facts.get("capacity", 0))
            self.desk.open(session_id, capacity_chars=capacity_chars, timeout_s=timeout_s)
        except RequestError as error:
            return f"refused · {error.message}"
        return ""

    def _submit(self, name: str, facts: dict[str, str], flags: set[str]) -> list[Addressed]:
        asked = sampling(
            int(facts["new"]),
            min_new_tokens=int(facts.get("min", 0)),
            stops=(facts["stop"].encode(),) if "stop" in facts else (),
            stop_ids=(int(facts["stop_id"]),) if "stop_id" in facts else (),
            seed=int(facts.get("seed", 0)),
        )
        now_s = self.desk.now_s
        deadline_s = now_s + float(facts.get("deadline", "inf"))
        return self.desk.submit(
            request(
                name,
                _prompt(int(facts["prompt"]), int(facts.get("first", "0"))),
                asked,
                arrival_s=now_s,
                deadline_s=deadline_s,
                group=facts.get("group", ""),
                priority=int(facts.get("priority", 0)),
                tenant=facts.get("tenant", ""),
                turn=_turn(facts, flags) if "session" in facts else None,
            )
        )


def _turn(facts: dict[str, str], flags: set[str]) -> SessionTurn:
    return SessionTurn(
        facts["session"],
        RequestId(facts["after"]) if "after" in facts else None,
        offset=int(facts.get("offset", 0)),
        drops_output="drops_output" in flags,
        replaces="replaces" in flags,
        is_clamped="clamped" in flags,
    )


def _session(session: SessionView) -> str:
    lines = [f"{session.id}{' closing' if session.is_closing else ''} idle={session.idle_s:g}"]
    depths: dict[str | None, int] = {None: 0}
    for turn in session.turns:
        depth = depths[turn.rid] = depths[turn.parent] + 1
        tokens = f"{turn.num_prompt_tokens}+{turn.num_output_tokens}"
        lines.append(f"{'  ' * depth}{turn.rid} {turn.state} {tokens}")
    return "\n".join(lines)


def _prompt(num_tokens: int, first: int) -> tuple[int, ...]:
    """The vocabulary in order, from one of its tokens on: who begins elsewhere shares nothing."""
    return tuple((first + i) % 20 for i in range(num_tokens))


def _desk(facts: dict[str, str]) -> Desk:
    return Desk(
        num_pages=int(facts.get("pages", 64)),
        max_step_tokens=int(facts.get("step", 32)),
        max_running=int(facts.get("running", 8)),
        max_queued=int(facts.get("queued", 100)),
        growth_tokens=None if facts.get("growth") == "-1" else int(facts.get("growth", 128)),
        policy=POLICIES[facts.get("policy", "lpm")],
        max_context_tokens=int(facts.get("context", 512)),
        queue_timeout_s=float(facts.get("queue_timeout", "inf")),
        session_timeout_s=float(facts.get("session_timeout", "inf")),
        speculates="speculates" in facts,
    )


def _step(plan: BatchPlan | None, said: list[Addressed]) -> str:
    if plan is None:
        return "idle"
    cuts = " ".join(
        f"{part.request_id}[{part.start}:{part.stop}]{'?' if part.samples else ''}"
        f"{'+' if part.drafts else ''}{bytes(97 + i for i in part.drafts).decode()}"
        for part in plan.slices
    )
    return "\n".join(filter(None, (f"#{plan.number}  {cuts}", _lines(said))))


def _lines(said: list[Addressed]) -> str:
    return "\n".join(f"{envelope.rid} {shown(event)}" for envelope, event in said)


def replay(text: str) -> str:
    """The transcript as it comes out now; comments and commands are kept."""
    player, blocks = Player(), []
    for block in text.strip().split("\n\n"):
        head = block.split("\n----", 1)[0]
        comments = [line for line in head.split("\n") if line.startswith("#")]
        commands = [line for line in head.split("\n") if line and not line.startswith("#")]
        outcome = [player.play(command) for command in commands]
        if commands:
            comments += [*commands, "----", *filter(None, outcome)]
        blocks.append("\n".join(comments))
    return "\n\n".join(blocks) + "\n"


if __name__ == "__main__":
    for name in sys.argv[1:]:
        path = Path(name)
        path.write_text(replay(path.read_text()))
