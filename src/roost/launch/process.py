"""A child of the supervisor: a fork of it, or `python -m roost.launch.process`.

Its job comes over stdin.
"""

import ctypes
import os
import signal
import sys
from typing import Final, NoReturn

from roost.core.errors import RoostError
from roost.launch.heap import without_collection
from roost.launch.readiness import Failed, Job, Lines, Order, order_lines, say

_PR_SET_PDEATHSIG: Final = 1
_PR_SET_NAME: Final = 15


def main() -> int:
    """Be what the job says; 0 for an orderly end."""
    # A terminal's Ctrl-C and an init system's SIGTERM reach every process; the supervisor alone
    # decides what they mean.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    orders = order_lines(sys.stdin.fileno())
    first: list[Job | Order] = []
    while not first:
        first = orders.read()
        if orders.is_ended:
            return 1
    job = first[0]
    assert isinstance(job, Job), "the first line is the job"
    assert len(first) == 1, "no order comes before the child is ready"
    _name_process("roost engine" if job.role == "engine" else f"roost http {job.worker}")
    die_with_parent(job.parent_pid, signal.SIGKILL if job.role == "http" else None)
    try:
        return _run(job, orders)
    except RoostError as error:
        say(job.news_fd, Failed(error.message))
        return 1


def _run(job: Job, orders: "Lines[Job | Order]") -> int:
    if job.role == "engine":
        with without_collection():
            from roost.launch.engine_process import run_engine

        return run_engine(job, orders)
    # The library that counts takes its directory in no other way, and when it is imported.
    os.environ["PROMETHEUS_MULTIPROC_DIR"] = job.directory
    with without_collection():
        from roost.launch.http_worker import run_http_worker

    return run_http_worker(job, orders)


def _name_process(name: str) -> None:
    """For `top` and `ps -o comm`: a fork has its parent's command line. 15 bytes count."""
    _prctl(_PR_SET_NAME, name.encode())


def _prctl(option: int, argument: int | bytes) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, argument, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option})")


def die_with_parent(parent_pid: int, death_signal: signal.Signals | None) -> None:
    """Ask the kernel to send `death_signal` when the parent dies; leave if it is dead already.

    The engine asks for none: it watches its stdin, and clears the sockets' directory away first.
    """
    if death_signal is not None:
        _prctl(_PR_SET_PDEATHSIG, int(death_signal))
    if os.getppid() != parent_pid:
        os._exit(1)


def be_child() -> NoReturn:
    """Be what the job says, and end this process."""
    exit_code = 1
    try:
        exit_code = main()
    except Exception:
        # `os._exit` below would end it in silence.
        sys.excepthook(*sys.exc_info())
        raise
    finally:
        # All is closed. To take a thousand modules down in order costs 0.1 s in every process; and
        # a fork must not go on into what its parent would do next.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(exit_code)


if __name__ == "__main__":
    be_child()
