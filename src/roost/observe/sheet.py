"""The numbers behind /metrics: a sheet of f64 in memory that all HTTP workers share.

Each worker has a row that it alone writes, and whoever is asked adds up the rows. A number is one
aligned store, there at once for every reader, and stays when its process is killed: the next life
of that worker goes on from it, so no counter goes back.
"""

import mmap
import os
from pathlib import Path
from typing import Self

from roost.observe.series import LIVE, WIDTH

_F64_BYTES = 8


class Sheet:
    """A row of WIDTH numbers for each of `num_rows` workers."""

    def __init__(self, memory: mmap.mmap, num_rows: int) -> None:
        self._numbers: memoryview[float] = memoryview(memory).cast("d")
        self._num_rows = num_rows

    @classmethod
    def private(cls) -> Self:
        """One row that no other process sees."""
        return cls(mmap.mmap(-1, WIDTH * _F64_BYTES), 1)

    @classmethod
    def create(cls, path: Path, num_rows: int) -> Self:
        """A new file of zeros. Raises OSError."""
        with path.open("xb") as file:
            # Really there: a disk that is full later must not kill who counts.
            os.posix_fallocate(file.fileno(), 0, num_rows * WIDTH * _F64_BYTES)
        return cls.shared(path, num_rows)

    @classmethod
    def shared(cls, path: Path, num_rows: int) -> Self:
        """The file that another process created with as many rows. Raises OSError."""
        with path.open("r+b") as file:
            return cls(mmap.mmap(file.fileno(), num_rows * WIDTH * _F64_BYTES), num_rows)

    def row(self, worker: int) -> "memoryview[float]":
        """The numbers of one worker, to be written by it alone while it lives."""
        assert 0 <= worker < self._num_rows, "there is a row for each worker"
        return self._numbers[worker * WIDTH : (worker + 1) * WIDTH]

    def has_ended(self, worker: int) -> None:
        """That worker's process is over, and so is what it had at hand; what it counted stays."""
        row = self.row(worker)
        for at in LIVE:
            row[at] = 0.0

    def totals(self) -> list[float]:
        """The sum over all workers, a number for each place of a row."""
        numbers = self._numbers.tolist()
        return [sum(numbers[at::WIDTH]) for at in range(WIDTH)]
