"""Scripts by number: the same seed gives the same script, on any machine."""

import random
from typing import Final

import msgspec
from tests.sim import script
from tests.sim.fake_runner import EOS_ID, FIRST_REPEATING_SEED, VOCAB_SIZE, alone
from tests.sim.requests import sampling

_NUM_SESSIONS: Final = 3
_MODES: Final = ("abort", "retract", "in_place")
_SEEDS: Final = (0, 1, 2, 3, *range(FIRST_REPEATING_SEED, FIRST_REPEATING_SEED + 4))
_NAMESPACES: Final = ("", "", "", "", "a", "b")
_LEVELS: Final = ("debug", "info", "warning", "error")
_WAYS: Final = ("up", "down")

# What scripts of each kind do besides asking, leaving and aborting: (what, how often).
_KINDS: Final[dict[str, dict[str, int]]] = {
    "calm": {},
    "sessions": {"session": 2, "turn": 70, "close": 3, "list": 1},
    "operators": {
        "pause": 4, "resume": 6, "flush": 3, "level": 2, "abort_all": 2, "probe": 3,
        "session": 1, "turn": 20,
    },
    "deaths": {
        "kill": 4, "stall": 3, "shut": 2, "stall_engine": 2, "flush": 1, "level": 2,
        "session": 1, "turn": 20,
    },
    "losses": {"lose": 8, "delay": 5, "level": 2, "probe": 1, "session": 1, "turn": 24},
    "faults": {"break": 3, "fault_row": 4, "turn": 24, "session": 1},
    "all": {
        "session": 1, "turn": 40, "close": 2, "list": 1, "pause": 1, "resume": 3, "flush": 1,
        "level": 1, "abort_all": 1, "probe": 1, "kill": 1, "stall": 1, "shut": 1, "lose": 1,
        "delay": 1, "break": 1, "fault_row": 1, "stall_engine": 1,
    },
}  # fmt: skip
_ALWAYS: Final = {"ask": 34, "wait": 18, "leave": 7, "abort": 7, "again": 3}


class _Roller:
    def __init__(self, seed: int) -> None:
        self._dice = random.Random(seed)
        self._kind = self._dice.choice(tuple(_KINDS))
        self._names: list[str] = []
        self._asks: list[script.Ask] = []
        self._turns: list[tuple[str, str]] = []
        # What prompts may have in common.
        self._stems = [self._letters(60) for _ in range(3)]
        self._layout = self._lay_out()

    def write(self, seed: int) -> script.Script:
        weights = {**_ALWAYS, **_KINDS[self._kind]}
        num = self._dice.randint(3, 36)
        whats = self._dice.choices(tuple(weights), tuple(weights.values()), k=num)
        actions: list[script.Action] = []
        if "session" in weights:
            actions += [script.Open(self._front(), f"s{i}") for i in range(_NUM_SESSIONS)]
            actions.append(script.Wait(0.5))
        for what in whats:
            actions += self._again() if what == "again" else [self._action(what)]
            if self._dice.random() < 0.2:
                actions.append(script.Wait(self._dice.choice((0.03, 0.1, 0.2))))
        return script.Script(seed, self._layout, tuple(actions))

    def _lay_out(self) -> script.Layout:
        pick = self._dice.choice
        return script.Layout(
            num_fronts=self._dice.randint(1, 4),
            num_pages=pick((5, 6, 7, 8, 10, 14)),
            max_running=self._dice.choice((1, 2, 4, 6)),
            max_queued=pick((1, 4, 30, 30, 30)),
            step_s=pick((0.01, 0.05, 0.1)),
            spread_s=pick((0.001, 0.01, 0.1)),
            queue_timeout_s=pick((60.0, 60.0, 1.0)),
            session_timeout_s=pick((30.0, 30.0, 30.0, 2.0)),
            max_sessions=pick((1, 4, 4, 4, 4, 4)),
            session_busy=pick(("wait", "wait", "refuse")),
            eviction=pick(("lru", "lru", "lfu", "fifo")),
            speculates=pick((False, True)),
        )

    def _action(self, what: str) -> script.Action:
        dice, front = self._dice, self._front()
        match what:
            case "ask":
                self._asks.append(self._ask())
                return self._asks[-1]
            case "turn":
                return self._turn()
            case "wait":
                return self._wait()
            case "leave":
                return script.Leave(self._name())
            case "abort":
                return script.AbortCall(front, self._name())
            case "abort_all":
                return script.AbortCall(front, None)
            case "session":
                return self._open()
            case "close":
                return script.Close(front, self._session())
            case "list":
                return script.ListThem(front)
            case "pause":
                return script.PauseIt(front, dice.choice(_MODES))
            case "resume":
                return script.ResumeIt(front)
            case "flush":
                return script.Flush(front, dice.choice((0.0, 2.0, None)))
            case "level":
                return script.Level(front, dice.choice(_LEVELS))
            case "probe":
                return script.Probe(front)
            case _:
                return self._trouble(what)

    def _again(self) -> list[script.Action]:
        """A client leaves, and asks once more under the same name before its end is known."""
        if not self._asks:
            return []
        ask = self._dice.choice(self._asks[-3:])
        return [script.Leave(ask.name), msgspec.structs.replace(ask, seed=ask.seed + 5)]

    def _trouble(self, what: str) -> script.Action:
        dice, front = self._dice, self._front()
        match what:
            case "kill":
                goodbye_s = dice.choice((0.05, 0.5, None))
                return script.Kill(front, goodbye_s, dice.choice((0.0, 0.05, 1.0)))
            case "stall":
                return script.Stall(front, dice.choice((0.3, 2.0, 8.0)))
            case "stall_engine":
                return script.StallEngine(dice.choice((0.5, 3.0, 8.0, 35.0)))
            case "shut":
                return script.Shut(front)
            case "lose":
                return script.Lose(front, dice.choice(_WAYS), dice.choice((1, 1, 3)))
            case "delay":
                return script.Delay(front, dice.choice(_WAYS), dice.choice((0.2, 1.5, 6.0)))
            case "break":
                return script.BreakStep()
            case "fault_row":
                return script.FaultRow(self._name())
            case _:
                raise AssertionError(f"no action is called {what}")

    def _ask(self) -> script.Ask:
        dice = self._dice
        n = dice.choice((1, 1, 1, 1, 3))
        prompt = self._prompt(dice.choice((2, 9, 16, 30, 33, 60)))
        if self._asks and dice.random() < 0.2:
            prompt = self._going_on(dice.choice(self._asks[-5:]))
        return script.Ask(
            self._front(),
            self._new_name(),
            prompt,
            new=dice.randint(0, 40),
            seed=dice.choice(_SEEDS),
            n=n,
            stop_id=dice.choice((None, None, 7)),
            timeout_s=dice.choice((None, None, None, 0.3, 2.0)),
            tokenise_s=dice.choice((0.0, 0.0, 0.0, 0.005, 0.3)),
            is_bad=dice.random() < 0.03,
            namespace=dice.choice(_NAMESPACES),
            scores_from=dice.choice((-1, -1, -1, 0, len(prompt) // 2, len(prompt) - 1)),
        )

    def _turn(self) -> script.Ask:
        dice = self._dice
        session = self._session()
        of_session = [name for name, where in self._turns if where == session]
        parent = None
        if of_session and dice.random() < 0.75:
            parent = dice.choice(of_session[-3:])
        elif dice.random() < 0.05:
            parent = "nobody"
        name = self._new_name()
        self._turns.append((name, session))
        prompt = self._prompt(dice.randint(1, 8))
        if dice.random() < 0.2:
            prompt = (EOS_ID, *prompt)
        # Mostly by the same way: a turn that overtakes its parent is refused.
        front = (
            self._front() if dice.random() < 0.25 else int(session[1:]) % self._layout.num_fronts
        )
        return script.Ask(
            front,
            name,
            prompt,
            new=dice.randint(0, 12),
            seed=dice.choice(_SEEDS),
            timeout_s=dice.choice((None, None, None, None, 1.0)),
            tokenise_s=dice.choice((0.0, 0.0, 0.0, 0.005, 0.3)),
            turn=script.Turn(
                session,
                parent,
                offset=dice.choice((0, 0, 0, 0, 0, 0, 2, -2, 500)) if parent else 0,
                drops_output=dice.random() < 0.1,
                replaces=dice.random() < 0.1,
            ),
            namespace=dice.choice(_NAMESPACES),
        )

    def _open(self) -> script.Open:
        dice = self._dice
        timeout_s = dice.choice((None, None, 60.0, 1.0))
        return script.Open(self._front(), self._session(), timeout_s, dice.choice((0, 0, 0, 40)))

    def _wait(self) -> script.Wait:
        return script.Wait(self._dice.choice((0.0, 0.002, 0.02, 0.05, 0.1, 0.2, 0.4, 1.5, 6.0)))

    def _prompt(self, length: int) -> tuple[int, ...]:
        """Often one that begins as others do."""
        own = self._letters(length)
        if self._dice.random() < 0.4:
            return own
        num_common = self._dice.choice((length // 2, length - 1, length))
        return (*self._dice.choice(self._stems)[:num_common], *own[num_common:])

    def _going_on(self, ask: script.Ask) -> tuple[int, ...]:
        """As a chat without a session does: what was asked, its answer, and more."""
        stop_ids = (EOS_ID,) if ask.stop_id is None else (ask.stop_id, EOS_ID)
        answer = alone(ask.prompt, sampling(ask.new, seed=ask.seed, stop_ids=stop_ids))
        return (*ask.prompt, *answer, *self._letters(3))[:100]

    def _letters(self, length: int) -> tuple[int, ...]:
        return tuple(self._dice.randrange(VOCAB_SIZE - 1) for _ in range(length))

    def _front(self) -> int:
        return self._dice.randrange(self._layout.num_fronts)

    def _session(self) -> str:
        return f"s{self._dice.randrange(_NUM_SESSIONS)}"

    def _new_name(self) -> str:
        """Once in a while one that was used before; and one that begins like others."""
        if self._names and self._dice.random() < 0.1:
            return self._dice.choice(self._names[-4:])
        name = f"r{len(self._names)}"
        self._names.append(name)
        return name

    def _name(self) -> str:
        """Of a request that was there, of one that comes, of an answer, or of nobody."""
        roll = self._dice.random()
        if not self._names or roll < 0.1:
            return f"r{len(self._names) + self._dice.randint(0, 3)}"
        if roll < 0.15:
            return "r"
        name = self._names[-1 - self._dice.randrange(min(6, len(self._names)))]
        return f"{name}_{self._dice.randint(0, 2)}" if roll < 0.25 else name


def roll(seed: int) -> script.Script:
    return _Roller(seed).write(seed)
