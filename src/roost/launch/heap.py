"""The interpreter's collector while a process starts."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_collection() -> Iterator[None]:
    """No collection inside.

    A start makes a hundred thousand objects that stay; collections, which come the more often the
    faster there are new ones, would look through them again and again for nothing.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
