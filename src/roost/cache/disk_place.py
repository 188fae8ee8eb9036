"""Where KV pages are kept on disk, as settings say it."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from roost.core.errors import ConfigError

_UNITS: Final = {"": 1, "B": 1, "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30, "TIB": 1 << 40}
_SHAPE: Final = re.compile(r"(.+):(\d+(?:\.\d+)?) ?([KMGT]iB|B|)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class DiskPlace:
    """A folder, and how many bytes may be kept there."""

    folder: Path
    max_bytes: int


def disk_place(text: str) -> DiskPlace:
    """`DIR:SIZE`, where SIZE is bytes or a number of KiB, MiB, GiB, TiB. Raises ConfigError."""
    found = _SHAPE.fullmatch(text)
    if found is None:
        raise ConfigError(f"kv_disk must be DIR:SIZE, as in /var/cache/kv:2GiB, got {text!r}")
    folder, number, unit = found.groups()
    return DiskPlace(Path(folder), int(float(number) * _UNITS[unit.upper()]))
