"""Pages on disk come back as they were, or not at all."""

import errno
import logging
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from roost.cache.disk import DiskPages, identity_of
from roost.cache.segment import HEADER_BYTES, SLOT_BYTES, Segment
from roost.core.errors import ConfigError

PAGE_BYTES = 1000
SLOT = SLOT_BYTES + PAGE_BYTES
US = identity_of("a model", "bf16")


def digest(number: int) -> bytes:
    return number.to_bytes(16, "little")


def page(number: int) -> bytes:
    return bytes((number * 7 + i) % 256 for i in range(PAGE_BYTES))


@contextmanager
def opened(
    folder: Path, num_slots: int = 160, identity: bytes = US, page_bytes: int = PAGE_BYTES
) -> Iterator[DiskPages]:
    """Room for so many pages, in 16 files."""
    size = 16 * HEADER_BYTES + num_slots * (SLOT_BYTES + page_bytes)
    pages = DiskPages(folder, size, page_bytes, identity)
    try:
        yield pages
    finally:
        pages.close()


def fill(folder: Path, numbers: range, num_slots: int = 160) -> None:
    with opened(folder, num_slots) as pages:
        for number in numbers:
            assert pages.wants(digest(number))
            pages.write(digest(number), page(number))


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("pages-*"))


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]


def test_a_page_comes_back_before_and_after_it_was_written(tmp_path: Path) -> None:
    with opened(tmp_path) as pages:
        assert digest(1) not in pages
        assert pages.read(digest(1)) is None
        pages.write(digest(1), page(1))
        assert digest(1) in pages
        assert not pages.wants(digest(1))
        assert pages.read(digest(1)) == page(1)
    with opened(tmp_path) as again:
        assert again.num_pages == 1
        assert not again.wants(digest(1))
        assert again.read(digest(1)) == page(1)


def test_the_next_server_goes_on_in_the_same_file(tmp_path: Path) -> None:
    for number in range(25):
        fill(tmp_path, range(number, number + 1))
    assert files(tmp_path) == [f"pages-0000000{n}.roostkv" for n in (1, 2, 3)]
    with opened(tmp_path) as pages:
        assert [pages.read(digest(number)) for number in range(25)] == list(map(page, range(25)))


def test_a_folder_is_of_one_server_at_a_time(tmp_path: Path) -> None:
    with opened(tmp_path), pytest.raises(ConfigError, match="in use by another server"):
        DiskPages(tmp_path, 1 << 20, PAGE_BYTES, US)
    with opened(tmp_path):
        pass


def test_a_folder_that_cannot_be_made_and_a_size_that_is_no_use_are_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be used"):
        DiskPages(tmp_path / "file" / "sub", 1 << 20, PAGE_BYTES, US)
    with pytest.raises(ConfigError, match="1000 bytes are too few; it takes 17216 at least"):
        DiskPages(tmp_path, 1000, PAGE_BYTES, US)


def test_the_size_is_kept_and_what_was_used_longest_ago_goes(tmp_path: Path) -> None:
    fill(tmp_path, range(160))
    with opened(tmp_path) as pages:
        assert pages.num_pages == 160
        assert pages.read(digest(0)) == page(0)
        pages.write(digest(160), page(160))
    size = sum(path.stat().st_size for path in tmp_path.glob("pages-*"))
    assert size <= 16 * HEADER_BYTES + 160 * SLOT
    with opened(tmp_path) as pages:
        gone = [number for number in range(161) if digest(number) not in pages]
        assert gone == list(range(10, 20))


def test_a_smaller_size_is_kept_from_the_start(tmp_path: Path) -> None:
    fill(tmp_path, range(160))
    with opened(tmp_path, 32) as pages:
        assert pages.num_pages == 30
        assert sum(path.stat().st_size for path in tmp_path.glob("pages-*")) <= (
            16 * HEADER_BYTES + 32 * SLOT
        )


def test_a_write_that_was_cut_off_costs_its_page_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fill(tmp_path, range(3))
    (path,) = tmp_path.glob("pages-*")
    os.truncate(path, HEADER_BYTES + 2 * SLOT + 500)
    with opened(tmp_path) as pages:
        assert digest(2) not in pages
        pages.write(digest(3), page(3))
    with opened(tmp_path) as pages:
        assert [pages.read(digest(number)) for number in (0, 1, 3)] == [page(0), page(1), page(3)]
    assert warnings(caplog) == []


@pytest.mark.parametrize(
    ("at", "is_known"),
    [(SLOT + 3, False), (SLOT + 17, False), (SLOT + 21, False), (SLOT + SLOT_BYTES + 999, True)],
    ids=["digest", "checksum of the page", "checksum of the head", "last byte"],
)
def test_a_flipped_bit_is_noticed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, at: int, *, is_known: bool
) -> None:
    fill(tmp_path, range(3))
    (path,) = tmp_path.glob("pages-*")
    data = bytearray(path.read_bytes())
    data[HEADER_BYTES + at] ^= 4
    path.write_bytes(data)
    with opened(tmp_path) as pages:
        assert (digest(1) in pages) is is_known
        assert pages.read(digest(1)) is None
        assert digest(1) not in pages
        assert pages.read(digest(2)) == page(2)
        assert pages.wants(digest(1))
    assert len(warnings(caplog)) == 1


def test_foreign_files_are_passed_over_with_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "pages-00000007.roostkv").write_bytes(b"")
    (tmp_path / "pages-00000009.roostkv").write_bytes(os.urandom(5000))
    (tmp_path / "pages-of-mine.roostkv").write_text("my own")
    (tmp_path / "notes.txt").write_text("my own, too")
    fill(tmp_path, range(2))
    assert len(warnings(caplog)) == 1
    assert "3 files" in warnings(caplog)[0]
    assert (tmp_path / "pages-00000010.roostkv").exists()
    assert (tmp_path / "pages-of-mine.roostkv").read_text() == "my own"
    assert (tmp_path / "notes.txt").read_text() == "my own, too"


def test_pages_of_another_model_are_not_found_and_go_when_room_is_needed(tmp_path: Path) -> None:
    fill(tmp_path, range(160))
    with opened(tmp_path, identity=identity_of("another model", "bf16")) as other:
        assert other.num_pages == 0
        for number in range(20):
            other.write(digest(number), page(number + 1))
    with opened(tmp_path) as pages:
        # 16 files fill the folder, and two were needed.
        assert [n for n in range(160) if digest(n) not in pages] == list(range(20))
        assert pages.read(digest(20)) == page(20)
    with opened(tmp_path, identity=identity_of("another model", "bf16")) as other:
        assert other.read(digest(0)) == page(1)


def test_pages_of_another_size_are_not_read(tmp_path: Path) -> None:
    fill(tmp_path, range(3))
    with opened(tmp_path, page_bytes=PAGE_BYTES // 2) as pages:
        assert pages.num_pages == 0


def test_a_flush_forgets_all_of_it(tmp_path: Path) -> None:
    fill(tmp_path, range(30))
    with opened(tmp_path) as pages:
        pages.write(digest(40), page(40))
        pages.flush()
        assert pages.num_pages == 0
        assert pages.read(digest(40)) is None
        pages.write(digest(1), page(1))
    with opened(tmp_path) as pages:
        assert pages.num_pages == 1
        assert pages.read(digest(1)) == page(1)
    assert len(files(tmp_path)) == 1


def test_a_full_disk_turns_writing_off_with_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(tmp_path, range(3))

    def full(_fd: int, _data: bytes, _at: int) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with opened(tmp_path) as pages:
        monkeypatch.setattr(os, "pwrite", full)
        pages.write(digest(5), page(5))
        pages.write(digest(6), page(6))
        pages.close()
        assert not pages.wants(digest(7))
        assert digest(5) not in pages
    assert len(warnings(caplog)) == 1
    assert "No space left on device" in warnings(caplog)[0]
    with opened(tmp_path) as pages:
        assert [pages.read(digest(number)) for number in range(3)] == list(map(page, range(3)))


def test_a_page_that_is_half_written_when_the_disk_is_full_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "pages-00000001.roostkv"
    segment = Segment.create(path, US, PAGE_BYTES)
    segment.append(digest(1), page(1))
    write = os.pwrite

    def half(fd: int, data: memoryview, at: int) -> int:
        if at > HEADER_BYTES + SLOT:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(fd, data[: len(data) // 2], at)

    monkeypatch.setattr(os, "pwrite", half)
    with pytest.raises(OSError, match="No space"):
        segment.append(digest(2), page(2))
    segment.close()
    with opened(tmp_path) as pages:
        assert pages.num_pages == 1
        assert pages.read(digest(1)) == page(1)


def test_a_slow_disk_holds_nobody_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages are taken while the queue has room, can be read from it, and then are not wanted."""
    size = 8 << 20
    may_write = threading.Event()
    write = os.pwrite

    def slow(fd: int, data: memoryview, at: int) -> int:
        assert may_write.wait(20)
        return write(fd, data, at)

    monkeypatch.setattr(os, "pwrite", slow)
    with opened(tmp_path, 16, page_bytes=size) as pages:
        num_taken = 0
        while pages.wants(digest(num_taken)):
            pages.write(digest(num_taken), bytes([num_taken]) * size)
            num_taken += 1
        assert num_taken == 8
        assert pages.read(digest(7)) == bytes([7]) * size
        may_write.set()
    with opened(tmp_path, 16, page_bytes=size) as pages:
        assert pages.num_pages == 8


def test_at_the_end_pages_wait_for_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One more than the queue holds is taken once one of them is written."""
    size = 8 << 20
    may_write = threading.Semaphore(1)  # the header of the file
    write = os.pwrite

    def slow(fd: int, data: memoryview, at: int) -> int:
        assert may_write.acquire(timeout=20)
        return write(fd, data, at)

    monkeypatch.setattr(os, "pwrite", slow)
    with opened(tmp_path, 16, page_bytes=size) as pages:
        for number in range(8):
            assert pages.wants(digest(number))
            pages.write(digest(number), bytes([number]) * size)
        assert not pages.wants(digest(8))
        pages.let_wait()
        for number in range(8, 10):
            may_write.release(2)
            assert pages.wants(digest(number))
            pages.write(digest(number), bytes([number]) * size)
        may_write.release(40)
    with opened(tmp_path, 16, page_bytes=size) as pages:
        assert pages.num_pages == 10
