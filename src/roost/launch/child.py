"""One child process, as the supervisor holds it."""

import os
import signal
import subprocess
import sys
from dataclasses import dataclass

import msgspec

from roost.launch.readiness import Job, Lines, News, Order, news_lines, say


@dataclass(slots=True)
class Child:
    """A process that was started. exit_fd becomes readable when it has ended."""

    job: Job
    process: subprocess.Popen[bytes]
    news: "Lines[News]"
    exit_fd: int
    is_ready: bool = False
    is_drained: bool = False

    @property
    def name(self) -> str:
        return "engine" if self.job.role == "engine" else f"HTTP worker {self.job.worker}"

    def tell(self, order: Order) -> None:
        """Give an order. A child that is dead hears nothing, and is reaped elsewhere."""
        assert self.process.stdin is not None
        say(self.process.stdin.fileno(), order)

    def kill(self) -> None:
        """End it at once. Harmless for one that has ended."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)

    def reap(self) -> str:
        """Take the exit of a child that has ended → how it ended, for people."""
        code = self.process.wait()
        assert self.process.stdin is not None
        self.process.stdin.close()
        os.close(self.exit_fd)
        os.close(self.news.fd)
        if code < 0:
            return f"killed by {signal.Signals(-code).name}"
        return f"exit code {code}"


def start_child(job: Job, listen_fd: int | None) -> Child:
    """Start `job` in a new process. listen_fd: a listening socket that it inherits."""
    news_read, news_write = os.pipe()
    job = msgspec.structs.replace(
        job, news_fd=news_write, listen_fd=-1 if listen_fd is None else listen_fd
    )
    inherited = (news_write,) if listen_fd is None else (news_write, listen_fd)
    # A group of its own: what a terminal sends is for the supervisor.
    process = subprocess.Popen(
        [sys.executable, "-m", "roost.launch.process"],
        stdin=subprocess.PIPE,
        pass_fds=inherited,
        process_group=0,
        bufsize=0,
    )
    os.close(news_write)
    os.set_blocking(news_read, False)
    assert process.stdin is not None
    say(process.stdin.fileno(), job)
    exit_fd = os.pidfd_open(process.pid)
    return Child(job, process, news_lines(news_read), exit_fd)
