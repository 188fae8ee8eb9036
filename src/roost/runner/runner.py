"""Executes plans on a recorded program."""

from typing import Protocol

from roost.core.plan import BatchPlan, StepResult
from roost.programs import StepInputs, StepOutputs
from roost.runner.inputs import InputMaker
from roost.runner.outputs import results


class Program(Protocol):
    """A recorded forward pass, its weights and its KV cache."""

    def run(self, inputs: StepInputs) -> StepOutputs: ...

    def close(self) -> None: ...


class Runner:
    """One model. `execute` blocks until the step is computed, with the GIL released meanwhile."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._inputs = InputMaker()

    def execute(self, plan: BatchPlan) -> StepResult:
        inputs = self._inputs.make(plan)
        return results(plan, inputs, self._program.run(inputs))

    def close(self) -> None:
        self._program.close()
