"""Usable cores: the affinity mask, cut by the cgroup's quota."""

import os
from pathlib import Path

import psutil
import pytest

from roost.core.errors import ConfigError
from roost.kernels import ThreadPool, available_isas, choose_isa, usable_cores

MASK = len(os.sched_getaffinity(0))


def write(root: Path, name: str, text: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_without_a_quota_the_mask_decides(tmp_path: Path) -> None:
    assert usable_cores(tmp_path) == (MASK, f"{MASK} cores in the affinity mask")
    write(tmp_path, "proc/self/cgroup", "0::/a/b\n")
    write(tmp_path, "sys/fs/cgroup/a/b/cpu.max", "max 100000\n")
    assert usable_cores(tmp_path) == (MASK, f"{MASK} cores in the affinity mask")


def test_the_tightest_group_above_counts(tmp_path: Path) -> None:
    write(tmp_path, "proc/self/cgroup", "0::/a/b\n")
    write(tmp_path, "sys/fs/cgroup/a/b/cpu.max", "800000 100000\n")
    write(tmp_path, "sys/fs/cgroup/a/cpu.max", "50000 100000\n")
    assert usable_cores(tmp_path) == (
        (1, "cgroup quota of 0.5 cores") if MASK > 1 else (1, "1 cores in the affinity mask")
    )


def test_version_one_quotas(tmp_path: Path) -> None:
    write(tmp_path, "proc/self/cgroup", "3:cpu,cpuacct:/job\n4:memory:/job\n")
    write(tmp_path, "sys/fs/cgroup/cpu/job/cpu.cfs_quota_us", "90000\n")
    write(tmp_path, "sys/fs/cgroup/cpu/job/cpu.cfs_period_us", "100000\n")
    assert usable_cores(tmp_path)[0] == 1
    write(tmp_path, "sys/fs/cgroup/cpu/job/cpu.cfs_quota_us", "-1\n")
    assert usable_cores(tmp_path)[0] == MASK


def test_a_broken_file_is_no_quota(tmp_path: Path) -> None:
    write(tmp_path, "proc/self/cgroup", "0::/\n")
    write(tmp_path, "sys/fs/cgroup/cpu.max", "garbage\n")
    assert usable_cores(tmp_path)[0] == MASK


def test_an_unknown_isa_is_refused_by_name() -> None:
    assert choose_isa(None) == available_isas()[-1]
    assert choose_isa("portable") == "portable"
    with pytest.raises(ConfigError, match="isa=sse9: this machine runs portable"):
        choose_isa("sse9")


def test_a_closed_pool_leaves_no_thread() -> None:
    process = psutil.Process()
    before = process.num_threads()
    pool = ThreadPool(3)
    assert process.num_threads() == before + 2
    pool.close()
    pool.close()
    assert process.num_threads() == before
