"""The control groups that limit this process (Linux, cgroup v1 and v2)."""

from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import NamedTuple


class Group(NamedTuple):
    """A group's folder, and whether its files are those of v2."""

    folder: Path
    is_v2: bool


def groups_of(controller: str, root: Path) -> Iterator[Group]:
    """The groups of this process with `controller` ("cpu", "memory"), and all groups above them.

    root: where /proc and /sys lie. A folder may be missing: a container sees a part of the tree.
    """
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        hierarchy, controllers, path = line.split(":", 2)
        is_v2 = hierarchy == "0"
        if not is_v2 and controller not in controllers.split(","):
            continue
        top = root / "sys/fs/cgroup" / ("" if is_v2 else controller)
        group = PurePosixPath(path.lstrip("/"))
        for folder in (group, *group.parents):
            yield Group(top / folder, is_v2)
