"""A bar for what takes longer than a moment: reading and packing weights."""

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn

from roost.core.clock import Clock, SystemClock

# What is done sooner needs no bar.
_QUIET_S = 0.5


class LoadingBar:
    """Shown on a terminal only, once loading has taken a moment. `update` is its callback."""

    def __init__(self, console: Console, clock: Clock | None = None) -> None:
        self._console = console
        self._clock = SystemClock() if clock is None else clock
        self._begun_s: float | None = None
        self._progress: Progress | None = None
        self._task = TaskID(0)

    def update(self, num_done: int, num_total: int) -> None:
        """Bytes done, of bytes in all."""
        now_s = self._clock.now_s()
        if self._begun_s is None:
            self._begun_s = now_s
        if self._progress is None:
            if not self._console.is_terminal or now_s - self._begun_s < _QUIET_S:
                return
            self._progress = Progress(
                TextColumn("packing weights"),
                BarColumn(),
                DownloadColumn(binary_units=True),
                console=self._console,
                transient=True,
            )
            self._task = self._progress.add_task("", total=num_total)
            self._progress.start()
        self._progress.update(self._task, completed=num_done, total=num_total)

    def close(self) -> None:
        if self._progress is not None:
            self._progress.stop()
            self._progress = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
