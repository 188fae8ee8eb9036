"""What this process may still take of the machine's memory."""

from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from roost.core.errors import ConfigError
from roost.runner import FreeMemory


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
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        hierarchy, controllers, path = line.split(":", 2)
        if hierarchy == "0":
            top, names = root / "sys/fs/cgroup", ("memory.max", "memory.current", "file")
        elif "memory" in controllers.split(","):
            top = root / "sys/fs/cgroup/memory"
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_cache")
        else:
            continue
        group = PurePosixPath(path.lstrip("/"))
        for folder in (group, *group.parents):
            room = _room(top / folder, *names)
            if room is not None:
                yield FreeMemory(max(room, 0), "what the cgroup's memory limit leaves")


def _room(group: Path, limit_name: str, usage_name: str, cache_name: str) -> int | None:
    """Bytes under this group's limit; None where it has none. Cached files count as free: the
    kernel takes them back before it refuses memory.
    """
    try:
        limit = int((group / limit_name).read_text())
        usage = int((group / usage_name).read_text())
        stat = (group / "memory.stat").read_text()
    except (OSError, ValueError):  # no such group here, or "max"
        return None
    facts = dict(line.split(" ", 1) for line in stat.splitlines())
    return limit - usage + int(facts.get(cache_name, 0))
