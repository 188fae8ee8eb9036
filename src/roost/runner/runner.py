"""Executes plans on a recorded program."""

from collections.abc import Sequence
from typing import Protocol

from roost.core.plan import BatchPlan, StepResult
from roost.programs import StepInputs, StepOutputs
from roost.runner.inputs import InputMaker
from roost.runner.outputs import results


class Closeable(Protocol):
    def close(self) -> None: ...


class Program(Closeable, Protocol):
    """A recorded forward pass, its weights and its KV cache."""

    def run(self, inputs: StepInputs) -> StepOutputs: ...

    def copy_pages(self, sources: Sequence[int], targets: Sequence[int]) -> None: ...


class Runner:
    """One model. `execute` blocks until the step is computed, with the GIL released meanwhile.

    It owns the program and what that runs on (`below`), and closes them in this order.
    """

    def __init__(self, program: Program, *below: Closeable) -> None:
        self._program = program
        self._below = below
        self._inputs = InputMaker()

    def execute(self, plan: BatchPlan) -> StepResult:
        if plan.copies:
            sources, targets = zip(*plan.copies, strict=True)
            self._program.copy_pages(sources, targets)
        inputs = self._inputs.make(plan)
        return results(plan, inputs, self._program.run(inputs))

    def close(self) -> None:
        for owned in (self._program, *self._below):
            owned.close()
