"""Packed weights on disk: one file a model, written once, mapped by every later start.

    bytes 0 … 8      magic, with the version of this format
          8 … 40     key: what the content was made of and how (SHA-256)
         40 … 48     size of the file
         48 … 52     number of segments
         52 … 56     CRC-32 of all of the header but these four bytes
         56 …        a record a segment: offset u64, bytes u64, scale f64
         then        the segments, each on a 64-byte boundary

Everything is little endian. A file that is foreign, cut short or of another key is passed over.
"""

import contextlib
import fcntl
import mmap
import os
import struct
import tempfile
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]

_MAGIC: Final = b"ROOSTPK\x01"
_HEAD: Final = struct.Struct("<8s32sQII")
_RECORD: Final = struct.Struct("<QQd")
_ALIGNMENT: Final = 64
_PARTIAL: Final = ".partial"


@dataclass(frozen=True, slots=True)
class PackFile:
    """Where a packed model is kept. `name` without the key: files that differ in key only are
    older forms of the same, and replaced.
    """

    folder: Path
    name: str
    key: bytes

    @property
    def path(self) -> Path:
        return self.folder / f"{self.name}-{self.key[:8].hex()}.pack"

    def map(self, sizes: Sequence[int]) -> list[tuple[Bytes, float]] | None:
        """The segments (read-only views, scales); None when there is no such file, or a bad one."""
        try:
            with self.path.open("rb") as file:
                buffer = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError):
            return None
        offsets, end = _offsets(sizes)
        header_bytes = _HEAD.size + _RECORD.size * len(sizes)
        if len(buffer) != end or end < header_bytes:
            return None
        scales = [
            _RECORD.unpack_from(buffer, _HEAD.size + _RECORD.size * i)[2] for i in range(len(sizes))
        ]
        if buffer[:header_bytes] != _header(self.key, end, offsets, sizes, scales):
            return None
        buffer.madvise(mmap.MADV_WILLNEED)
        whole = np.frombuffer(buffer, np.uint8)
        return [
            (whole[offset : offset + size], scale)
            for offset, size, scale in zip(offsets, sizes, scales, strict=True)
        ]

    @contextlib.contextmanager
    def write(self, sizes: Sequence[int]) -> Iterator[tuple[list[Bytes], list[float]]]:
        """Segments to fill and a list to put their scales in; kept when the block ends well.

        Raises OSError before or after the block when the folder or disk cannot take the file.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        self._remove_orphans()
        offsets, end = _offsets(sizes)
        descriptor, partial = tempfile.mkstemp(_PARTIAL, self.name, self.folder)
        try:
            with open(descriptor, "r+b") as file:  # noqa: PTH123 — a descriptor, not a path
                # The lock tells other starts that somebody is at work on this file.
                fcntl.flock(file, fcntl.LOCK_EX)
                _reserve(file, end)
                buffer = mmap.mmap(file.fileno(), end, access=mmap.ACCESS_WRITE)
                whole = np.frombuffer(buffer, np.uint8)
                scales: list[float] = []
                yield (
                    [
                        whole[offset : offset + size]
                        for offset, size in zip(offsets, sizes, strict=True)
                    ],
                    scales,
                )
                assert len(scales) == len(sizes), "a segment has no scale"
                header = _header(self.key, end, offsets, sizes, scales)
                # The header goes in last and after the data are on disk: power may fail between.
                buffer.flush()
                buffer[: len(header)] = header
                buffer.flush()
                Path(partial).replace(self.path)
        finally:
            Path(partial).unlink(missing_ok=True)
        self._remove_older()

    def _remove_orphans(self) -> None:
        """Remove what starts left behind that were killed while writing."""
        for path in self.folder.glob(f"*{_PARTIAL}"):
            with contextlib.suppress(OSError), path.open("rb") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.unlink()

    def _remove_older(self) -> None:
        for path in self.folder.glob(f"{self.name}-*.pack"):
            if path != self.path:
                # Engines that have it mapped keep it until they end.
                with contextlib.suppress(OSError):
                    path.unlink()


def _offsets(sizes: Sequence[int]) -> tuple[list[int], int]:
    """Where each segment starts, and the size of the file."""
    offsets: list[int] = []
    end = _HEAD.size + _RECORD.size * len(sizes)
    for size in sizes:
        start = -(-end // _ALIGNMENT) * _ALIGNMENT
        offsets.append(start)
        end = start + size
    return offsets, end


def _header(
    key: bytes,
    end: int,
    offsets: Sequence[int],
    sizes: Sequence[int],
    scales: Sequence[float],
) -> bytes:
    records = b"".join(map(_RECORD.pack, offsets, sizes, scales))
    checksum = zlib.crc32(_HEAD.pack(_MAGIC, key, end, len(sizes), 0)[:-4] + records)
    return _HEAD.pack(_MAGIC, key, end, len(sizes), checksum) + records


def _reserve(file: BinaryIO, size: int) -> None:
    """Take the space now: a full disk found later would be a bus error."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file.fileno(), 0, size)
    else:
        file.truncate(size)
