"""One file of KV pages.

    header   magic 8 · identity 32 · bytes of a page u64 · CRC-32 of these u32
    slots    digest 16 · CRC-32 of the page u32 · CRC-32 of these two u32 · the page

Numbers are little-endian, slots have one size and are only ever added at the end. A slot counts
when its own head is right, and is believed when its page is.
"""

import os
import struct
import zlib
from pathlib import Path
from typing import Final, Self

from roost.cache.digests import DIGEST_BYTES

IDENTITY_BYTES: Final = 32
# The digit is the version of this layout and of that of the pages.
_MAGIC: Final = b"roostkv1"
_HEADER: Final = struct.Struct(f"<8s{IDENTITY_BYTES}sQI")
_SLOT: Final = struct.Struct(f"<{DIGEST_BYTES}sII")

HEADER_BYTES: Final = _HEADER.size
SLOT_BYTES: Final = _SLOT.size


class NotASegment(Exception):
    """The file is not of this format, or its header is broken."""


class Segment:
    """An open file. Methods raise OSError as the system does. Not for two threads at a time, except
    that `read` may run beside `append`.

    digests: of the slots, in order; b"": a slot whose head is broken. is_ours: of the identity
    asked for; another's slots are not read.
    """

    def __init__(self, path: Path, fd: int, page_bytes: int) -> None:
        self.path = path
        self.digests: list[bytes] = []
        self.is_ours = True
        self.num_bytes = HEADER_BYTES
        self._fd = fd
        self._page_bytes = page_bytes

    @classmethod
    def create(cls, path: Path, identity: bytes, page_bytes: int) -> Self:
        """A new file without slots. There may be none of its name."""
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        made = cls(path, fd, page_bytes)
        try:
            _write_all(fd, _header(identity, page_bytes), 0)
        except OSError:
            made.close()
            path.unlink()
            raise
        return made

    @classmethod
    def open(cls, path: Path, identity: bytes, page_bytes: int) -> Self:
        """What an earlier server left. Raises NotASegment. A last slot that is cut off does not
        count, and is overwritten.
        """
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        found = cls(path, fd, page_bytes)
        try:
            header = _read_header(path, fd)
            found.num_bytes = os.fstat(fd).st_size
            found.is_ours = header == _header(identity, page_bytes)
            if found.is_ours:
                num_slots = (found.num_bytes - HEADER_BYTES) // found.slot_bytes
                found.digests = [found._digest(slot) for slot in range(num_slots)]
        except BaseException:
            found.close()
            raise
        return found

    @property
    def slot_bytes(self) -> int:
        return SLOT_BYTES + self._page_bytes

    def append(self, digest: bytes, page: bytes) -> None:
        """Add a slot. When it raises, what was written of it does not count."""
        assert len(page) == self._page_bytes, "a page of another size"
        at = HEADER_BYTES + len(self.digests) * self.slot_bytes
        _write_all(self._fd, _slot_head(digest, page) + page, at)
        self.digests.append(digest)
        self.num_bytes = at + self.slot_bytes

    def read(self, slot: int, digest: bytes) -> bytes | None:
        """The page of a slot; None: what lies there is not that page, or is broken."""
        found = os.pread(self._fd, self.slot_bytes, HEADER_BYTES + slot * self.slot_bytes)
        page = found[SLOT_BYTES:]
        if len(page) != self._page_bytes or found[:SLOT_BYTES] != _slot_head(digest, page):
            return None
        return page

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def remove(self) -> None:
        """Close it, and take it off the disk."""
        self.close()
        self.path.unlink(missing_ok=True)

    def _digest(self, slot: int) -> bytes:
        head = os.pread(self._fd, SLOT_BYTES, HEADER_BYTES + slot * self.slot_bytes)
        digest, page_crc, crc = _SLOT.unpack(head)
        return digest if crc == _crc(digest, page_crc) else b""


def _header(identity: bytes, page_bytes: int) -> bytes:
    assert len(identity) == IDENTITY_BYTES, "an identity of another size"
    body = _HEADER.pack(_MAGIC, identity, page_bytes, 0)[:-4]
    return body + zlib.crc32(body).to_bytes(4, "little")


def _read_header(path: Path, fd: int) -> bytes:
    header = os.pread(fd, HEADER_BYTES, 0)
    body, crc = header[:-4], int.from_bytes(header[-4:], "little")
    if len(header) < HEADER_BYTES or not header.startswith(_MAGIC) or zlib.crc32(body) != crc:
        raise NotASegment(path)
    return header


def _slot_head(digest: bytes, page: bytes) -> bytes:
    page_crc = zlib.crc32(page)
    return _SLOT.pack(digest, page_crc, _crc(digest, page_crc))


def _crc(digest: bytes, page_crc: int) -> int:
    return zlib.crc32(page_crc.to_bytes(4, "little"), zlib.crc32(digest))


def _write_all(fd: int, data: bytes, at: int) -> None:
    left = memoryview(data)
    while left:
        num_written = os.pwrite(fd, left, at)
        left, at = left[num_written:], at + num_written
