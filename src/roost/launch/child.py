"""One child process, as the supervisor holds it."""

import contextlib
import gc
import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from roost.launch.process import be_child
from roost.launch.readiness import Job, Lines, News, Order, news_lines, say

_STDERR: Final = 2
_ENDING: Final = (signal.SIGINT, signal.SIGTERM)


@dataclass(slots=True)
class Child:
    """A process that was started. exit_fd, a pidfd, becomes readable when it has ended."""

    job: Job
    pid: int
    orders_fd: int
    news: "Lines[News]"
    exit_fd: int
    is_ready: bool = False
    is_drained: bool = False

    @property
    def name(self) -> str:
        return "engine" if self.job.role == "engine" else f"HTTP worker {self.job.worker}"

    def tell(self, order: Order) -> None:
        """Give an order. A child that is dead hears nothing, and is reaped elsewhere."""
        say(self.orders_fd, order)

    def kill(self) -> None:
        """End it at once. Harmless for one that has ended and is not reaped."""
        signal.pidfd_send_signal(self.exit_fd, signal.SIGKILL)

    def reap(self) -> str:
        """Take the exit of a child that has ended → how it ended, for people."""
        _, status = os.waitpid(self.pid, 0)
        code = os.waitstatus_to_exitcode(status)
        for fd in (self.orders_fd, self.exit_fd, self.news.fd):
            os.close(fd)
        if code < 0:
            return f"killed by {signal.Signals(-code).name}"
        return f"exit code {code}"


def start_child(job: Job, listen_fd: int | None, *, may_fork: bool) -> Child:
    """Start `job` in a new process. listen_fd: a listening socket that it inherits.

    may_fork: this process has no thread but the caller's, so a child may go on as a copy of it,
    with all that is imported; otherwise it is a new interpreter.
    """
    orders_read, orders_write = os.pipe()
    news_read, news_write = os.pipe()
    job = msgspec.structs.replace(
        job, news_fd=news_write, listen_fd=-1 if listen_fd is None else listen_fd
    )
    kept = (news_write,) if listen_fd is None else (news_write, listen_fd)
    pid = _forked(orders_read, kept) if may_fork else _spawned(orders_read, kept)
    os.close(orders_read)
    os.close(news_write)
    os.set_blocking(news_read, False)
    exit_fd = os.pidfd_open(pid)
    say(orders_write, job)
    return Child(job, pid, orders_write, news_lines(news_read), exit_fd)


def _forked(orders_fd: int, kept: tuple[int, ...]) -> int:
    """A copy of this process → its id. It keeps the standard streams and `kept`, and no more."""
    sys.stdout.flush()
    sys.stderr.flush()
    # What there is now lives as long as the process: no collection looks at it, or writes to its
    # pages, which the processes share.
    gc.freeze()
    # A signal that comes in between would be told to the supervisor by the child's copy of its
    # handlers.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
    pid = os.fork()
    if pid == 0:
        signal.set_wakeup_fd(-1)
        for number in _ENDING:
            signal.signal(number, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        os.setpgid(0, 0)
        os.dup2(orders_fd, 0)
        _close_others(kept)
        be_child()
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return pid


def _close_others(kept: tuple[int, ...]) -> None:
    for fd in [int(path.name) for path in Path("/proc/self/fd").iterdir()]:
        if fd > _STDERR and fd not in kept:
            # The descriptor that listed them is among them, and closed by now.
            with contextlib.suppress(OSError):
                os.close(fd)


def _spawned(orders_fd: int, kept: tuple[int, ...]) -> int:
    """A new interpreter → its id."""
    for fd in kept:
        os.set_inheritable(fd, True)
    try:
        # A group of its own: what a terminal sends is for the supervisor.
        return os.posix_spawn(
            sys.executable,
            [sys.executable, "-m", "roost.launch.process"],
            os.environ,
            file_actions=[(os.POSIX_SPAWN_DUP2, orders_fd, 0)],
            setpgroup=0,
        )
    finally:
        for fd in kept:
            os.set_inheritable(fd, False)
