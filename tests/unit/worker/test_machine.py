from pathlib import Path

import pytest

from roost.core.errors import ConfigError
from roost.worker import free_memory

MIB = 1 << 20


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/meminfo").write_text(
        "MemTotal:  8388608 kB\nMemFree:  100 kB\nMemAvailable:  4194304 kB\n"
    )
    return tmp_path


def group(root: Path, path: str, **files: str) -> None:
    folder = root / "sys/fs/cgroup" / path
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text)


def test_without_a_limit_it_is_what_the_machine_has(machine: Path) -> None:
    found = free_memory(machine)
    assert (found.num_bytes, found.why) == (4096 * MIB, "what the machine has available")


def test_a_limit_of_a_group_above_counts_and_cached_files_are_free(machine: Path) -> None:
    (machine / "proc/self/cgroup").write_text("0::/outer/inner\n")
    group(machine, "outer/inner", memory__max="max\n")
    group(
        machine,
        "outer",
        memory__max=f"{1000 * MIB}\n",
        memory__current=f"{600 * MIB}\n",
        memory__stat=f"anon {500 * MIB}\nfile {100 * MIB}\nshmem {25 * MIB}\n",
    )
    found = free_memory(machine)
    assert (found.num_bytes, found.why) == (475 * MIB, "what the cgroup's memory limit leaves")


def test_the_older_hierarchy_is_read_too(machine: Path) -> None:
    (machine / "proc/self/cgroup").write_text("5:cpu:/a\n9:memory:/b\n")
    group(
        machine,
        "memory/b",
        memory__limit_in_bytes=f"{300 * MIB}\n",
        memory__usage_in_bytes=f"{400 * MIB}\n",
        memory__stat=f"total_cache {20 * MIB}\n",
    )
    assert free_memory(machine).num_bytes == 0


def test_a_kernel_that_says_nothing_is_an_error_in_words(machine: Path) -> None:
    (machine / "proc/meminfo").write_text("MemTotal:  8388608 kB\n")
    with pytest.raises(ConfigError, match="has no MemAvailable"):
        free_memory(machine)


def test_this_machine_has_some() -> None:
    assert free_memory().num_bytes > MIB
