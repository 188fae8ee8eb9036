"""Executes plans on a recorded program."""

from collections.abc import Sequence
from typing import Protocol

import msgspec

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

    def read_page(self, page: int) -> bytes: ...

    def write_page(self, page: int, data: bytes) -> None: ...


class PageShelf(Closeable, Protocol):
    """Where KV pages are kept when others need their place."""

    def wants(self, digest: bytes) -> bool: ...

    def write(self, digest: bytes, page: bytes) -> None: ...

    def read(self, digest: bytes) -> bytes | None: ...


class Runner:
    """One model. `execute` blocks until the step is computed, with the GIL released meanwhile.

    It owns the program, what that runs on (`below`) and the shelf, and closes them in this order.
    shelf: for saves and loads; without one there may be none.
    """

    def __init__(self, program: Program, *below: Closeable, shelf: PageShelf | None = None) -> None:
        self._program = program
        self._below = below
        self._shelf = shelf
        self._inputs = InputMaker()

    def execute(self, plan: BatchPlan) -> StepResult:
        if plan.saves:
            self._save(plan.saves)
        if plan.copies:
            sources, targets = zip(*plan.copies, strict=True)
            self._program.copy_pages(sources, targets)
        unread = self._load(plan.loads) if plan.loads else ()
        if not plan.slices:
            return StepResult(plan.number, (), unread)
        inputs = self._inputs.make(plan)
        found = results(plan, inputs, self._program.run(inputs))
        return msgspec.structs.replace(found, unread=unread) if unread else found

    def close(self) -> None:
        for owned in (self._program, *self._below):
            owned.close()
        if self._shelf is not None:
            self._shelf.close()

    def _save(self, saves: tuple[tuple[int, bytes], ...]) -> None:
        assert self._shelf is not None, "pages to be saved nowhere"
        for page, digest in saves:
            if self._shelf.wants(digest):
                self._shelf.write(digest, self._program.read_page(page))

    def _load(self, loads: tuple[tuple[int, bytes], ...]) -> tuple[int, ...]:
        """→ pages that could not be had."""
        assert self._shelf is not None, "pages to be loaded from nowhere"
        unread = []
        for page, digest in loads:
            data = self._shelf.read(digest)
            if data is None:
                unread.append(page)
            else:
                self._program.write_page(page, data)
        return tuple(unread)
