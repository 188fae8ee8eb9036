"""`roost serve`: the supervisor, and what people are told of it."""

from functools import cached_property
from typing import TYPE_CHECKING

import roost
from roost.core.clock import SystemClock
from roost.core.config import Resolved
from roost.launch.supervisor import supervise

if TYPE_CHECKING:
    from rich.console import Console

    from roost.launch.progress import LoadingBar


def serve(resolved: Resolved) -> int:
    """Serve until it ends. The exit code. Raises ConfigError for an address that is taken."""
    announcer = ConsoleAnnouncer()
    try:
        return supervise(resolved.config, resolved.reasons, announcer, SystemClock())
    finally:
        announcer.close()


class ConsoleAnnouncer:
    """Tells people on the terminal.

    Rich is loaded when there is something to say: the children are started before that.
    """

    def __init__(self) -> None:
        self._bar: LoadingBar | None = None

    def progress(self, num_done: int, num_total: int) -> None:
        if self._bar is None:
            from roost.launch.progress import LoadingBar

            self._bar = LoadingBar(self._errors)
        self._bar.update(num_done, num_total)

    def ready(self, url: str, facts: str) -> None:
        self.close()
        self._console.print(f"[bold]roost {roost.__version__}[/bold]  {url}")
        if facts:
            self._console.print(facts, style="dim", markup=False)

    def draining(self, timeout_s: float) -> None:
        self.close()
        self._console.print(
            f"Ending: running requests get {timeout_s:g} s. Once more ends at once."
        )

    def failed(self, message: str) -> None:
        self.close()
        self._errors.print(f"roost: {message}", markup=False)

    def close(self) -> None:
        """Take the bar away, if there is one."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    @cached_property
    def _console(self) -> "Console":
        from rich.console import Console

        return Console(highlight=False, soft_wrap=True)

    @cached_property
    def _errors(self) -> "Console":
        from rich.console import Console

        return Console(stderr=True, highlight=False, soft_wrap=True)
