"""Thread pools that end with the session."""

from collections.abc import Callable, Iterator

import pytest

from roost.kernels import ThreadPool


@pytest.fixture(scope="session")
def pool_of() -> Iterator[Callable[[int], ThreadPool]]:
    """A pool of so many threads, shared by tests."""
    pools: dict[int, ThreadPool] = {}

    def get(num_threads: int) -> ThreadPool:
        if num_threads not in pools:
            pools[num_threads] = ThreadPool(num_threads)
        return pools[num_threads]

    yield get
    for pool in pools.values():
        pool.close()
