"""How many cores this process may really use, and why."""

import math
import os
from pathlib import Path

from roost.kernels.cgroup import groups_of


def usable_cores(root: Path = Path("/")) -> tuple[int, str]:
    """The number of threads worth starting (≥ 1), and the reason.

    The smaller of the affinity mask and the CPU quota of the cgroup (v2 `cpu.max`, v1
    `cpu.cfs_quota_us`) of this process or of any group above it. root: where /proc and /sys lie.
    """
    num_cores = _affinity()
    quota = _cgroup_quota(root)
    if quota is not None and math.ceil(quota) < num_cores:
        return max(1, math.ceil(quota)), f"cgroup quota of {quota:g} cores"
    return num_cores, f"{num_cores} cores in the affinity mask"


def _affinity() -> int:
    if hasattr(os, "sched_getaffinity"):
        return max(1, len(os.sched_getaffinity(0)))
    return os.cpu_count() or 1


def _cgroup_quota(root: Path) -> float | None:
    """The least quota, in cores, on the way from this process's groups to the top; None: none."""
    found = (
        _quota_v2(folder) if is_v2 else _quota_v1(folder)
        for folder, is_v2 in groups_of("cpu", root)
    )
    return min((quota for quota in found if quota is not None), default=None)


def _quota_v2(group: Path) -> float | None:
    try:
        quota, period = (group / "cpu.max").read_text().split()
    except (OSError, ValueError):
        return None
    return None if quota == "max" else int(quota) / int(period)


def _quota_v1(group: Path) -> float | None:
    try:
        quota = int((group / "cpu.cfs_quota_us").read_text())
        period = int((group / "cpu.cfs_period_us").read_text())
    except (OSError, ValueError):
        return None
    return quota / period if quota > 0 and period > 0 else None
