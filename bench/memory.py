"""The memory that a server has: the sum of PSS over its processes.

PSS divides pages that several processes share among them, so that the sum counts each page once
(Linux, Documentation/filesystems/proc.rst). Pages of mapped files count as far as they are mapped.
"""

from pathlib import Path

_PROC = Path("/proc")


def tree(root: int, parents: dict[int, int]) -> set[int]:
    """`root` and all that descend from it. parents: process → its parent."""
    found = {root}
    while True:
        more = {pid for pid, parent in parents.items() if parent in found} - found
        if not more:
            return found
        found |= more


def tree_pss(root: int) -> int:
    """Bytes. Processes that end meanwhile count nothing."""
    parents = {}
    for folder in _PROC.iterdir():
        if folder.name.isdigit():
            try:
                stat = (folder / "stat").read_text()
            except OSError:
                continue
            # The name, in parentheses, may hold anything.
            parents[int(folder.name)] = int(stat.rpartition(")")[2].split()[1])
    return sum(_pss(pid) for pid in tree(root, parents))


def _pss(pid: int) -> int:
    try:
        lines = (_PROC / str(pid) / "smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))
