"""Who binds, who connects, and what each is called.

The engine binds one socket in a directory that only this user may enter; every HTTP worker, and the
supervisor, connects to it. A peer's routing identity is its origin, so the identity is the address
of its answers and a worker's next life has another one.
"""

import re
from pathlib import Path
from typing import Final

from roost.core.request import Origin

# The supervisor speaks (Goodbye, in the name of a dead worker) and asks for nothing.
SUPERVISOR: Final = Origin(worker=-1, epoch=0)

_IDENTITY = re.compile(rb"w(-1|[0-9]{1,9})\.([0-9]{1,18})")


def engine_address(directory: Path) -> str:
    """The address that the engine binds in `directory`, and that the others connect to."""
    return f"ipc://{directory / 'engine.sock'}"


def identity_of(origin: Origin) -> bytes:
    return b"w%d.%d" % (origin.worker, origin.epoch)


def origin_of(identity: bytes) -> Origin | None:
    """The origin that has this identity; None for a stranger's."""
    found = _IDENTITY.fullmatch(identity)
    if found is None:
        return None
    return Origin(worker=int(found[1]), epoch=int(found[2]))
