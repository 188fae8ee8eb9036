"""The threads that compute."""

from roost import _native


class ThreadPool:
    """num_threads − 1 native threads beside the caller's; asleep when no program runs.

    Shared by the programs of an engine; one of them runs at a time. `close` joins the threads, and
    so does the end of the object's life.
    """

    def __init__(self, num_threads: int) -> None:
        assert num_threads >= 1
        self._native: _native.ThreadPool | None = _native.ThreadPool(num_threads)
        self.num_threads = num_threads

    @property
    def native(self) -> _native.ThreadPool:
        """The native pool, for programs. Asserts that the pool is open."""
        assert self._native is not None, "the thread pool is closed"
        return self._native

    def close(self) -> None:
        """Join the threads. Programs that use the pool must be closed before. Twice is harmless."""
        native, self._native = self._native, None
        if native is not None:
            native.close()
