"""Tokens that get lost on the way are missed: no answer is short of one unnoticed."""

import pytest
from tests.sim import script
from tests.sim.house import House
from tests.sim.judgement import judge

from roost.core.events import Ended
from roost.core.outcome import Outcome

LAYOUT = script.Layout(num_fronts=1, num_pages=14, step_s=0.01, spread_s=0.001)


@pytest.mark.parametrize("late_s", [0.1, 0.2, 0.3])
def test_an_answer_that_lost_tokens_ends_as_a_fault(late_s: float) -> None:
    house = House(LAYOUT, 1)
    house.run(
        (
            script.Ask(0, "a", (1, 2, 3), 60),
            script.Wait(late_s),
            # One of them may be a heartbeat.
            script.Lose(0, "down", 3),
            script.Wait(3.0),
        )
    )
    assert judge(house) == []
    (asked,) = house.asked
    ending = asked.seen[-1][1]
    assert isinstance(ending, Ended)
    assert ending.outcome is Outcome.ENGINE_FAULT
    assert "Protocol violation" in ending.message
