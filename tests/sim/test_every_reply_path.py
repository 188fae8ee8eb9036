"""Every ending that there is, at every stage of a request, for a client of each of four workers:
the answer is seen at its own worker, once, and nowhere else."""

import functools
import itertools
from collections.abc import Callable
from typing import Final

import pytest
from tests.sim import script
from tests.sim.asked import Asked
from tests.sim.coverage import STAGES
from tests.sim.fake_runner import EOS_ID, alone
from tests.sim.house import House
from tests.sim.requests import sampling

from roost.core.events import Ended
from roost.core.outcome import OUTCOMES, Outcome

NUM_WORKERS: Final = 4
# Where there is no such path, and why.
_IS_PARSED = "it is what the API makes of a stop; the engine does not say it"
_HAS_RUN = "what runs is not refused any more"
_HAS_A_PLACE = "it has its place in the queue"
IMPOSSIBLE: Final[dict[tuple[Outcome, str], str]] = {
    **{(Outcome.TOOL_CALLS, stage): _IS_PARSED for stage in STAGES},
    (Outcome.INVALID_REQUEST, "prefilling"): _HAS_RUN,
    (Outcome.INVALID_REQUEST, "running"): _HAS_RUN,
    (Outcome.INVALID_REQUEST, "retracted"): _HAS_RUN,
    (Outcome.QUEUE_FULL, "held"): _HAS_A_PLACE,
    (Outcome.QUEUE_FULL, "queued"): _HAS_A_PLACE,
    (Outcome.QUEUE_FULL, "prefilling"): _HAS_A_PLACE,
    (Outcome.QUEUE_FULL, "running"): _HAS_A_PLACE,
    (Outcome.QUEUE_FULL, "retracted"): _HAS_A_PLACE,
    (Outcome.QUEUE_FULL, "just ended"): _HAS_A_PLACE,
}
PATHS: Final = [
    (outcome, stage)
    for outcome in Outcome
    for stage in STAGES
    if (outcome, stage) not in IMPOSSIBLE
]
_PROMPT: Final = tuple(range(20)) * 2
# Shares no page with it.
_ELDER = tuple(reversed(_PROMPT))
_NEW: Final = 30
_SESSION: Final = "s"


@functools.lru_cache
def _long_seeds(prompt: tuple[int, ...], new: int) -> list[int]:
    """Eight seeds with which the model does not end its answer by itself."""
    seeds = (s for s in itertools.count() if EOS_ID not in alone(prompt, sampling(new, seed=s)))
    return list(itertools.islice(seeds, 8))


class Scene:
    """A house in which one request of one worker is brought to a stage, and then to its end."""

    def __init__(self, outcome: Outcome, stage: str, number: int) -> None:
        self.outcome, self.stage, self.number = outcome, stage, number
        is_crowded = stage in ("queued", "held")
        self.house = House(
            script.Layout(
                num_fronts=NUM_WORKERS,
                num_pages=7 if stage == "retracted" else 40,
                max_running=1 if is_crowded else 4,
                max_queued=1 if outcome is Outcome.QUEUE_FULL or stage == "retracted" else 30,
                step_s=0.03,
                spread_s=0.001,
                queue_timeout_s=1000.0,
                session_timeout_s=1000.0,
            ),
            seed=number,
        )

    # ---- to the stage

    def begin(self) -> Asked:
        """Everything up to the moment at which the request is where it should be."""
        other = (self.number + 1) % NUM_WORKERS
        house = self.house
        house.open()
        turn = None
        if self.is_of_session:
            house.do(script.Open(other, _SESSION))
            house.do(script.Wait(0.1))
            if self.parent is not None:
                turn = script.Turn(_SESSION)
                house.do(script.Ask(other, self.parent, _PROMPT, _NEW, 5, turn=turn))
            turn = script.Turn(_SESSION, self.parent)
        if self.stage in ("queued", "retracted"):
            house.do(script.Ask(other, "elder", _ELDER, 60, _long_seeds(_ELDER, 60)[0]))
        if self.outcome is Outcome.QUEUE_FULL:
            self._fill(other)
        house.do(script.Wait(0.1))
        if self.stage == "on the way":
            house.do(script.Delay(self.number, "up", 1.0))
        house.do(self._ask(turn))
        if self.stage == "retracted":
            # It goes back to a queue that is full.
            house.do(script.Wait(0.1))
            house.do(script.Ask(other, "waiter", _PROMPT, 20))
        (asked,) = house.by_call["it"]
        self._come_to(asked)
        return asked

    @property
    def is_of_session(self) -> bool:
        is_refused = self.outcome is Outcome.INVALID_REQUEST
        return self.stage == "held" or (is_refused and self.stage in ("queued", "just ended"))

    @property
    def parent(self) -> str | None:
        return "parent" if self.is_of_session and self.stage != "queued" else None

    def _fill(self, other: int) -> None:
        """All places are taken, those of the queue too."""
        for i, seed in enumerate(_long_seeds((1, 2, 3), 90)[:5]):
            self.house.do(script.Ask(other, f"crowd{i}", (1, 2, 3), 90, seed))
            self.house.do(script.Wait(0.1))

    def _ask(self, turn: script.Turn | None) -> script.Ask:
        outcome, stage = self.outcome, self.stage
        is_early = stage in ("tokenising", "on the way")
        is_bad = outcome is Outcome.INVALID_REQUEST and is_early
        seed, stop_id = self._wanted()
        timeout_s = 3.0 if outcome is Outcome.DEADLINE else None
        if outcome is Outcome.DEADLINE and is_early:
            timeout_s = 0.5
        return script.Ask(
            self.number,
            "it",
            _PROMPT,
            _NEW,
            seed=seed,
            stop_id=stop_id,
            timeout_s=timeout_s,
            tokenise_s=1.0 if stage == "tokenising" else 0.0,
            is_bad=is_bad,
            turn=turn,
        )

    def _wanted(self) -> tuple[int, int | None]:
        """A seed with which it would answer to its last token, and a token on the way."""
        history: tuple[int, ...] = ()
        if self.parent is not None:
            history = (*_PROMPT, *alone(_PROMPT, sampling(_NEW, seed=5, stop_ids=(EOS_ID,))))
        # A turn of a session begins with no second BOS.
        prompt = (*history, *(_PROMPT[1:] if history else _PROMPT))
        for seed in _long_seeds(prompt, _NEW):
            answer = alone(prompt, sampling(_NEW, seed=seed))
            late = [i for i in answer[12:] if i not in answer[:12]]
            if late:
                return seed, late[0] if self.outcome is Outcome.STOP else None
        raise AssertionError("no answer says anything new")

    def _come_to(self, asked: Asked) -> None:
        house = self.house
        if self.stage == "just ended":
            before = "held" if self.is_of_session else "running"
            self._run_to(asked, before)
            house.do(script.Delay(self.number, "down", 8.0))
            # A client leaves while the news of the end is on the way; all else makes that end.
            if self.outcome is not Outcome.CLIENT_DISCONNECTED:
                self.end(asked)
        self._run_to(asked, self.stage)

    def _run_to(self, asked: Asked, stage: str) -> None:
        for _ in range(6000):
            if self.house.stage(asked) == stage:
                return
            self.house.do(script.Wait(0.001))
        raise AssertionError(f"it never was {stage}, but is {self.house.stage(asked)}")

    # ---- to the end

    def end(self, asked: Asked) -> None:
        """Do what makes it end so."""
        other = (self.number + 1) % NUM_WORKERS
        ends: dict[Outcome, Callable[[], None]] = {
            Outcome.CLIENT_DISCONNECTED: lambda: self.house.do(script.Leave("it")),
            Outcome.CLIENT_CANCELLED: lambda: self.house.do(script.AbortCall(other, "it")),
            Outcome.INVALID_REQUEST: lambda: self._close(other),
            Outcome.DEADLINE: lambda: self._pause(other),
            Outcome.SHUTTING_DOWN: self._shut,
            Outcome.ENGINE_FAULT: self._break,
        }
        ends.get(self.outcome, lambda: None)()

    def _close(self, other: int) -> None:
        if self.is_of_session:
            self.house.do(script.Close(other, _SESSION))

    def _pause(self, other: int) -> None:
        """Where it is, it stays until its time is over."""
        if self.stage not in ("tokenising", "on the way"):
            self.house.do(script.PauseIt(other, "in_place"))

    def _shut(self) -> None:
        if self.stage in ("tokenising", "on the way"):
            self.house.do(script.Shut(self.number))
        else:
            self.house.close_engine(Outcome.SHUTTING_DOWN)

    def _break(self) -> None:
        house = self.house
        match self.stage:
            case "tokenising":
                house.do(script.Lose(self.number, "up"))
            case "on the way":
                house.do(script.StallEngine(60.0))
            case "prefilling" | "running":
                house.do(script.BreakStep())
            case _:
                house.close_engine(Outcome.ENGINE_FAULT)


@pytest.mark.parametrize(("outcome", "stage"), PATHS)
@pytest.mark.parametrize("number", range(NUM_WORKERS))
def test_an_ending_comes_home(outcome: Outcome, stage: str, number: int) -> None:
    scene = Scene(outcome, stage, number)
    house = scene.house
    with house.listening():
        asked = scene.begin()
        # What is just ended has ended so already.
        if stage != "just ended" or outcome is Outcome.CLIENT_DISCONNECTED:
            scene.end(asked)
        house.do(script.Wait(50.0))
    ending = asked.ending
    assert ending is not None, f"it is {house.stage(asked)} for ever"
    assert ending.outcome is outcome, ending
    assert sum(isinstance(event, Ended) for _, event in asked.seen) == 1
    assert asked.heard[-1] == ending
    level = OUTCOMES[outcome].log_level
    for worker in house.workers:
        is_home = worker.origin == asked.envelope.origin
        lines = [line for line in worker.keeper.lines if line[0] == "it"]
        assert lines == ([("it", str(outcome), level)] if is_home else [])
        assert "unknown" not in worker.witness.late_causes
        assert is_home == (asked in worker.asked)


def test_what_is_not_tried_has_no_path() -> None:
    assert len(PATHS) + len(IMPOSSIBLE) == len(Outcome) * len(STAGES)
    assert len(IMPOSSIBLE) == 8 + 3 + 6
