"""KV pages on disk: written behind the engine's back, found again by what they hold, also by the
next server. Bytes only; what they mean is the runner's.
"""

import fcntl
import logging
import os
import threading
from hashlib import blake2b
from pathlib import Path
from typing import Final

from roost.cache.segment import HEADER_BYTES, IDENTITY_BYTES, SLOT_BYTES, NotASegment, Segment
from roost.core.errors import ConfigError

_log = logging.getLogger(__name__)

_LOCK_NAME: Final = "roost-kv.lock"
_PATTERN: Final = "pages-*.roostkv"
# A file is the least that is given up for a new page: a part in 16 of the whole.
_NUM_SEGMENTS: Final = 16
# Pages that wait to be written take no more memory than this; what comes then is not kept.
_MAX_QUEUED_BYTES: Final = 64 << 20


def identity_of(*facts: str) -> bytes:
    """32 bytes that differ when a fact does. Pages are read only by servers of equal identity."""
    return blake2b("\0".join(facts).encode(), digest_size=IDENTITY_BYTES).digest()


class DiskPages:
    """A folder of pages, one server's at a time, of at most `max_bytes`.

    The scheduler asks what is there, the runner reads and writes, and a thread of its own does what
    may take long: it writes pages and removes files. What is broken or another's is passed over
    with one warning; after a write that failed nothing more is written. The file that was used
    longest ago goes first.
    """

    def __init__(self, folder: Path, max_bytes: int, page_bytes: int, identity: bytes) -> None:
        """Raises ConfigError for a folder that is in use or of no use, and too small a size."""
        slot_bytes = SLOT_BYTES + page_bytes
        least = _NUM_SEGMENTS * (HEADER_BYTES + slot_bytes)
        if max_bytes < least:
            raise ConfigError(f"kv_disk: {max_bytes} bytes are too few; it takes {least} at least")
        self.page_bytes = page_bytes
        self._folder = folder
        self._identity = identity
        self._max_bytes = max_bytes
        self._segment_slots = (max_bytes // _NUM_SEGMENTS - HEADER_BYTES) // slot_bytes
        self._lock_fd = _lock(folder)
        # Guards all that follows.
        self._changed = threading.Condition()
        self._where: dict[bytes, tuple[Segment, int]] = {}
        self._queued: dict[bytes, bytes] = {}
        # The one that was used longest ago first.
        self._segments: dict[Segment, None] = {}
        self._doomed: list[Segment] = []
        self._is_off = False
        self._is_closing = False
        self._has_warned = False
        self._may_wait = False
        # Held while a page is read and while a file is closed: its number may be given again.
        self._reading = threading.Lock()
        # The writer's own: the file that it adds to, and the number of the next.
        self._current: Segment | None = None
        self._next_number = self._find() + 1
        try:
            while (oldest := self._too_much(0)) is not None:
                self._remove(oldest)
        except OSError as error:
            self._turn_off(error)
        self._writer = threading.Thread(target=self._write_behind, name="kv-disk", daemon=True)
        self._writer.start()

    # ---- for the scheduler

    def __contains__(self, digest: bytes) -> bool:
        """It may be gone, or turn out to be broken, when it is read."""
        with self._changed:
            return digest in self._where or digest in self._queued

    @property
    def num_pages(self) -> int:
        with self._changed:
            return len(self._where) + len(self._queued)

    def flush(self) -> None:
        """Forget everything, and remove the files."""
        with self._changed:
            self._where.clear()
            self._queued.clear()
            self._doomed += self._segments
            self._segments.clear()
            self._changed.notify_all()

    def let_wait(self) -> None:
        """From now on `wants` waits for time to write a page, and does not refuse it."""
        with self._changed:
            self._may_wait = True

    # ---- for the runner

    def wants(self, digest: bytes) -> bool:
        """Whether to bring this page. False: it is here, or there is no time to write it."""
        with self._changed:
            if self._may_wait:
                self._changed.wait_for(lambda: self._is_off or self._has_room())
            if self._is_off or digest in self._where or digest in self._queued:
                return False
            return self._has_room()

    def write(self, digest: bytes, page: bytes) -> None:
        """Keep a page that is wanted. Does not wait for the disk."""
        assert len(page) == self.page_bytes, "a page of another size"
        with self._changed:
            self._queued[digest] = page
            self._changed.notify_all()

    def read(self, digest: bytes) -> bytes | None:
        """A page, as it was written. None, and it is forgotten, when it cannot be had."""
        with self._reading:
            with self._changed:
                if (page := self._queued.get(digest)) is not None:
                    return page
                place = self._where.get(digest)
                if place is None:
                    return None
                segment, slot = place
                self._touch(segment)
            try:
                page = segment.read(slot, digest)
            except OSError as error:
                self._forget(digest, str(error))
                return None
        if page is None:
            self._forget(digest, f"{segment.path.name} is damaged")
        return page

    def close(self) -> None:
        """Write what is queued, and let another server have the folder. Twice is harmless."""
        with self._changed:
            if self._is_closing:
                return
            self._is_closing = True
            self._changed.notify_all()
        self._writer.join()
        for segment in self._segments:
            segment.close()
        os.close(self._lock_fd)

    # ---- how it begins

    def _find(self) -> int:
        """Enter what earlier servers left → the highest number of a file."""
        highest, num_foreign, num_broken = 0, 0, 0
        for path in sorted(self._folder.glob(_PATTERN)):
            number = path.stem.removeprefix("pages-")
            highest = max(highest, int(number) if number.isascii() and number.isdigit() else 0)
            try:
                segment = Segment.open(path, self._identity, self.page_bytes)
            except (NotASegment, OSError):
                num_foreign += 1
                continue
            self._segments[segment] = None
            num_broken += segment.digests.count(b"")
            if segment.is_ours and len(segment.digests) < self._segment_slots:
                self._current = segment
            for slot, digest in enumerate(segment.digests):
                if digest:
                    self._where[digest] = (segment, slot)
        if num_foreign or num_broken:
            self._warn(f"{num_foreign} files and {num_broken} pages in other files are damaged")
        return highest

    # ---- the writer

    def _write_behind(self) -> None:
        while True:
            with self._changed:
                while not (self._queued or self._doomed or self._is_closing):
                    self._changed.wait()
                doomed, self._doomed = self._doomed, []
                entry = next(iter(self._queued.items()), None)
                if entry is None and not doomed:
                    return
            try:
                for segment in doomed:
                    self._remove(segment)
                if entry is not None:
                    self._keep(*entry)
            except OSError as error:
                self._turn_off(error)

    def _keep(self, digest: bytes, page: bytes) -> None:
        """Write the first of the queue. Raises OSError."""
        segment = self._with_room()
        segment.append(digest, page)
        with self._changed:
            # Unless all was forgotten meanwhile.
            if segment in self._segments and self._queued.pop(digest, None) is not None:
                self._where[digest] = (segment, len(segment.digests) - 1)
                self._touch(segment)
                self._changed.notify_all()

    def _with_room(self) -> Segment:
        """A file for one more page, which then fits into the size. Raises OSError."""
        current = self._current
        with self._changed:
            is_gone = current not in self._segments
        if current is None or is_gone or len(current.digests) >= self._segment_slots:
            current = self._create()
        while (oldest := self._too_much(current.slot_bytes)) is not None:
            self._remove(oldest)
        return current

    def _create(self) -> Segment:
        path = self._folder / f"pages-{self._next_number:08}.roostkv"
        self._next_number += 1
        self._current = made = Segment.create(path, self._identity, self.page_bytes)
        with self._changed:
            self._segments[made] = None
        return made

    def _too_much(self, num_more: int) -> Segment | None:
        """Take out the file that has to go before `num_more` bytes may be added; None: none has."""
        with self._changed:
            if sum(one.num_bytes for one in self._segments) + num_more <= self._max_bytes:
                return None
            oldest = next((one for one in self._segments if one is not self._current), None)
            if oldest is not None:
                del self._segments[oldest]
                for slot, digest in enumerate(oldest.digests):
                    if self._where.get(digest) == (oldest, slot):
                        del self._where[digest]
            return oldest

    def _remove(self, segment: Segment) -> None:
        with self._reading:
            segment.close()
        segment.remove()

    def _turn_off(self, error: OSError) -> None:
        _log.warning("KV pages are no longer written to %s: %s", self._folder, error)
        with self._changed:
            self._is_off = True
            self._queued.clear()
            self._changed.notify_all()

    # ---- both

    def _has_room(self) -> bool:
        return (len(self._queued) + 1) * self.page_bytes <= _MAX_QUEUED_BYTES

    def _touch(self, segment: Segment) -> None:
        """It was used: it goes behind the others."""
        if segment in self._segments:
            del self._segments[segment]
            self._segments[segment] = None

    def _forget(self, digest: bytes, why: str) -> None:
        with self._changed:
            self._where.pop(digest, None)
        self._warn(why)

    def _warn(self, what: str) -> None:
        if not self._has_warned:
            self._has_warned = True
            _log.warning("KV pages in %s are passed over: %s", self._folder, what)


def _lock(folder: Path) -> int:
    """The lock of a folder, which is made if there is none. Raises ConfigError."""
    try:
        folder.mkdir(0o700, parents=True, exist_ok=True)
        fd = os.open(folder / _LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise ConfigError(f"kv_disk: {folder} cannot be used: {error.strerror}") from None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        raise ConfigError(
            f"kv_disk: {folder} is in use by another server; each needs a folder of its own"
        ) from None
    return fd
