"""Packed weights on disk come back as they were, or not at all."""

import fcntl
from pathlib import Path

import numpy as np
import pytest

from roost.weights.packfile import PackFile

SIZES = [100, 64, 1]
KEY = bytes(range(32))


def fill(kept: PackFile, *, sizes: list[int] = SIZES) -> None:
    with kept.write(sizes) as (targets, scales):
        for index, target in enumerate(targets):
            target[:] = index + 1
            scales.append(2.0**-index)


def test_what_was_written_is_mapped(tmp_path: Path) -> None:
    kept = PackFile(tmp_path / "deep" / "down", "model", KEY)
    assert kept.map(SIZES) is None
    fill(kept)
    assert [path.name for path in kept.folder.iterdir()] == ["model-0001020304050607.pack"]
    found = kept.map(SIZES)
    assert found is not None
    for index, (data, scale) in enumerate(found):
        assert data.tobytes() == bytes([index + 1]) * SIZES[index]
        assert scale == 2.0**-index
        assert data.ctypes.data % 64 == 0
        assert not data.flags.writeable


def test_another_key_or_other_sizes_find_nothing(tmp_path: Path) -> None:
    fill(PackFile(tmp_path, "model", KEY))
    # The same file name, but a key that differs behind what the name shows.
    assert PackFile(tmp_path, "model", KEY[:-1] + b"x").map(SIZES) is None
    assert PackFile(tmp_path, "model", KEY).map([100, 64, 2]) is None
    assert PackFile(tmp_path, "model", KEY).map([100, 64]) is None
    assert PackFile(tmp_path, "model", KEY).map(SIZES) is not None


@pytest.mark.parametrize("place", [0, 8, 40, 48, 52, 56, 64, 72, 103])
def test_a_damaged_header_finds_nothing_and_is_replaced(tmp_path: Path, place: int) -> None:
    kept = PackFile(tmp_path, "model", KEY)
    fill(kept)
    content = bytearray(kept.path.read_bytes())
    content[place] ^= 0x10
    kept.path.write_bytes(content)
    assert kept.map(SIZES) is None
    fill(kept)
    assert kept.map(SIZES) is not None


@pytest.mark.parametrize("size", [0, 1, 55, 56, 128, 300])
def test_a_truncated_file_finds_nothing(tmp_path: Path, size: int) -> None:
    kept = PackFile(tmp_path, "model", KEY)
    fill(kept)
    kept.path.write_bytes(kept.path.read_bytes()[:size])
    assert kept.map(SIZES) is None


def test_a_failure_leaves_nothing(tmp_path: Path) -> None:
    kept = PackFile(tmp_path, "model", KEY)
    with pytest.raises(RuntimeError), kept.write(SIZES):
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []


def test_older_forms_go_and_other_models_stay(tmp_path: Path) -> None:
    fill(PackFile(tmp_path, "model", b"\xff" * 32))
    fill(PackFile(tmp_path, "other", KEY))
    mapped = PackFile(tmp_path, "model", b"\xff" * 32).map(SIZES)
    kept = PackFile(tmp_path, "model", KEY)
    fill(kept)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["model-0001020304050607.pack", "other-0001020304050607.pack"]
    assert mapped is not None
    assert mapped[0][0].tobytes() == bytes([1]) * 100  # still there for who has it mapped


def test_what_a_killed_start_left_is_removed_and_a_live_one_kept(tmp_path: Path) -> None:
    (tmp_path / "dead.partial").write_bytes(b"x")
    with (tmp_path / "live.partial").open("wb") as live:
        fcntl.flock(live, fcntl.LOCK_EX)
        fill(PackFile(tmp_path, "model", KEY))
        assert (tmp_path / "live.partial").exists()
    assert not (tmp_path / "dead.partial").exists()


def test_a_folder_that_cannot_be_is_an_os_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="Not a directory"):
        fill(PackFile(tmp_path / "file" / "cache", "model", KEY))


def test_large_segments_stay_where_they_belong(tmp_path: Path) -> None:
    kept = PackFile(tmp_path, "model", KEY)
    rng = np.random.default_rng(7)
    parts = [rng.integers(0, 256, size, np.uint8) for size in (1_000_003, 64_000)]
    sizes = [part.nbytes for part in parts]
    with kept.write(sizes) as (targets, scales):
        for target, part in zip(targets, parts, strict=True):
            target[:] = part
            scales.append(1.0)
    found = kept.map(sizes)
    assert found is not None
    for (data, _), part in zip(found, parts, strict=True):
        assert np.array_equal(data, part)
