"""What this process may still take of the machine's memory."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from roost.core.errors import ConfigError
from roost.kernels import groups_of
from roost.runner import FreeMemory


class _Names(NamedTuple):
    """Files of a group, and lines of its `memory.stat`."""

    limit: str
    usage: str
    files: str
    shared: str


_V2 = _Names("memory.max", "memory.current", "file", "shmem")
_V1 = _Names("memory.limit_in_bytes", "memory.usage_in_bytes", "total_cache", "total_shmem")


def free_memory(root: Path = Path("/")) -> FreeMemory:
    """The least of what the machine has available and what the limits of this process's cgroup
    (v2 `memory.max`, v1 `memory.limit_in_bytes`), or of any group above it, leave.

    root: where /proc and /sys lie. Raises ConfigError where /proc says nothing.
    """
    found = [_available(root), *_cgroup_rooms(root)]
    return min(found, key=lambda free: free.num_bytes)


def _available(root: Path) -> FreeMemory:
    """MemAvailable: the kernel's estimate of what can be taken without swapping."""
    path = root / "proc/meminfo"
    for line in path.read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return FreeMemory(int(line.split()[1]) * 1024, "what the machine has available")
    raise ConfigError(f"{path} has no MemAvailable; set max_total_tokens")


def _cgroup_rooms(root: Path) -> Iterator[FreeMemory]:
    for folder, is_v2 in groups_of("memory", root):
        room = _room(folder, _V2 if is_v2 else _V1)
        if room is not None:
            yield FreeMemory(max(room, 0), "what the cgroup's memory limit leaves")


def _room(group: Path, names: _Names) -> int | None:
    """Bytes under this group's limit; None where it has none. Cached files count as free, since the
    kernel takes them back before it refuses memory; shared memory is counted with them, and is not.
    """
    try:
        limit = int((group / names.limit).read_text())
        usage = int((group / names.usage).read_text())
        stat = (group / "memory.stat").read_text()
    except (OSError, ValueError):  # no such group here, or "max"
        return None
    facts = dict(line.split(" ", 1) for line in stat.splitlines())
    cached = int(facts.get(names.files, 0)) - int(facts.get(names.shared, 0))
    return limit - usage + max(cached, 0)
