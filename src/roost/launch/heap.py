"""The heap of a process that starts."""

import ctypes
import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_collection() -> Iterator[None]:
    """No collection inside; what was used for a moment goes back to the system afterwards.

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
        # Of the C library's own making; others have no such call.
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)
