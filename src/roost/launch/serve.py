"""`roost serve`: the supervisor, and what people are told of it."""

from rich.console import Console
from rich.text import Text

import roost
from roost.core.clock import SystemClock
from roost.core.config import Resolved
from roost.launch.progress import LoadingBar
from roost.launch.supervisor import supervise


def serve(resolved: Resolved) -> int:
    """Serve until it ends. The exit code. Raises ConfigError for an address that is taken."""
    with LoadingBar(Console(stderr=True)) as bar:
        announcer = ConsoleAnnouncer(Console(highlight=False, soft_wrap=True), bar)
        return supervise(resolved.config, resolved.reasons, announcer, SystemClock())


class ConsoleAnnouncer:
    """Tells people on the terminal."""

    def __init__(self, console: Console, bar: LoadingBar) -> None:
        self._console = console
        self._bar = bar

    def progress(self, num_done: int, num_total: int) -> None:
        self._bar.update(num_done, num_total)

    def ready(self, url: str, facts: str) -> None:
        self._bar.close()
        self._console.print(f"[bold]roost {roost.__version__}[/bold]  {url}")
        if facts:
            self._console.print(Text(facts, style="dim"))

    def draining(self, timeout_s: float) -> None:
        self._bar.close()
        self._console.print(
            f"Ending: running requests get {timeout_s:g} s. Once more ends at once."
        )

    def failed(self, message: str) -> None:
        self._bar.close()
        Console(stderr=True, soft_wrap=True).print(f"roost: {message}", markup=False)
