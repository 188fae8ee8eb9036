"""GGUF, versions 2 and 3, little endian: header, metadata, tensor table, all checked.

Format: the GGUF specification (magic, version, counts, key-value pairs, tensor infos, padding to
`general.alignment`, data). The file is mapped; a tensor is a view, read when it is touched.
"""

import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from roost.core.errors import ModelError
from roost.weights.ggml import GgmlType, RawTensor, check_disjoint, tensor_nbytes

# Limits that no real file comes near. They bound the time and memory that a broken one can take.
_MAX_PAIRS: Final = 1 << 16
_MAX_TENSORS: Final = 1 << 20
_MAX_STRING_BYTES: Final = 1 << 26
_MAX_ARRAY_ITEMS: Final = 1 << 22  # of one file, all arrays together
_MAX_ARRAY_DEPTH: Final = 3
_MAX_DIMS: Final = 4
_MAX_ALIGNMENT: Final = 1 << 20
_DEFAULT_ALIGNMENT: Final = 32

_STRING: Final = 8
_ARRAY: Final = 9
_BOOL: Final = 7
_SCALARS: Final[dict[int, struct.Struct]] = {
    number: struct.Struct("<" + code)
    for number, code in {
        0: "B",
        1: "b",
        2: "H",
        3: "h",
        4: "I",
        5: "i",
        6: "f",
        _BOOL: "B",
        10: "Q",
        11: "q",
        12: "d",
    }.items()
}
_U32: Final = _SCALARS[4]
_U64: Final = _SCALARS[10]

MetadataValue = str | int | float | bool | list["MetadataValue"]


@dataclass(frozen=True, slots=True)
class GgufFile:
    """What a GGUF file says. metadata: plain Python values. header_bytes: all before the data."""

    path: Path
    metadata: Mapping[str, MetadataValue]
    tensors: Mapping[str, RawTensor]
    header_bytes: bytes


def read_gguf(path: Path) -> GgufFile:
    """Parse and check `path`. Raises ModelError naming the file, what is wrong, and the numbers."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            if size < 24:
                raise ModelError(f"{path}: {size} bytes are too few for a GGUF file")
            # A private, read-only mapping; views keep it alive.
            buffer = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
        raise ModelError(f"{path}: cannot be read: {error.strerror}") from error
    return _Reader(path, buffer).read()


class _Reader:
    """A cursor over the header. Every read is bounded by the file's size."""

    def __init__(self, path: Path, buffer: mmap.mmap) -> None:
        self._path = path
        self._buffer = buffer
        self._size = len(buffer)
        self._pos = 0
        self._items_left = _MAX_ARRAY_ITEMS

    def read(self) -> GgufFile:
        self._check_magic()
        num_tensors = self._count("tensors", _MAX_TENSORS)
        num_pairs = self._count("metadata pairs", _MAX_PAIRS)
        metadata = self._metadata(num_pairs)
        infos = self._tensor_infos(num_tensors)
        header_end = self._pos
        alignment = self._alignment(metadata)
        data_start = -(-header_end // alignment) * alignment
        return GgufFile(
            path=self._path,
            metadata=metadata,
            tensors=self._tensors(infos, data_start, alignment),
            header_bytes=self._buffer[:header_end],
        )

    def _check_magic(self) -> None:
        magic = self._buffer[:4]
        if magic != b"GGUF":
            raise self._error(f"starts with {magic!r}, a GGUF file with b'GGUF'")
        self._pos = 4
        version = self._u32("version")
        if version not in (2, 3):
            # A big-endian file shows its version in the wrong bytes.
            swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
            note = " (a big-endian file)" if swapped in (2, 3) else ""
            raise self._error(f"GGUF version {version}{note}; versions 2 and 3 are read")

    def _count(self, what: str, limit: int) -> int:
        count = self._u64(f"the number of {what}")
        if count > limit:
            raise self._error(f"claims {count} {what}; at most {limit} are believed")
        return count

    def _metadata(self, num_pairs: int) -> dict[str, MetadataValue]:
        metadata: dict[str, MetadataValue] = {}
        for index in range(num_pairs):
            key = self._string(f"the key of metadata pair {index}")
            if key in metadata:
                raise self._error(f"metadata key {key!r} stands twice")
            metadata[key] = self._value(self._u32(f"the type of {key!r}"), key)
        return metadata

    def _value(self, type_: int, key: str, depth: int = 0) -> MetadataValue:
        if type_ == _STRING:
            return self._string(f"the value of {key!r}")
        if type_ == _ARRAY:
            return self._array(key, depth)
        scalar = _SCALARS.get(type_)
        if scalar is None:
            raise self._error(f"metadata {key!r} has the unknown value type {type_}")
        self._need(scalar.size, f"the value of {key!r}")
        (value,) = scalar.unpack_from(self._buffer, self._pos)
        self._pos += scalar.size
        if type_ == _BOOL:
            return bool(value)
        assert isinstance(value, (int, float)), "struct gives numbers"
        return value

    def _array(self, key: str, depth: int) -> list[MetadataValue]:
        item_type = self._u32(f"the item type of {key!r}")
        count = self._u64(f"the length of {key!r}")
        scalar = _SCALARS.get(item_type)
        min_item_bytes = scalar.size if scalar else 12 if item_type == _ARRAY else 8
        if count > min(self._items_left, (self._size - self._pos) // min_item_bytes):
            raise self._error(
                f"metadata {key!r} claims {count} items; {self._size - self._pos} bytes follow and "
                f"at most {_MAX_ARRAY_ITEMS} items a file are believed",
            )
        self._items_left -= count
        if item_type == _STRING:
            return self._strings(key, count)
        if item_type == _ARRAY:
            if depth == _MAX_ARRAY_DEPTH:
                raise self._error(f"metadata {key!r} nests arrays deeper than {_MAX_ARRAY_DEPTH}")
            return [self._value(_ARRAY, key, depth + 1) for _ in range(count)]
        if scalar is None:
            raise self._error(f"metadata {key!r} has the unknown item type {item_type}")
        values = list(struct.unpack_from(f"<{count}{scalar.format[1:]}", self._buffer, self._pos))
        self._pos += count * scalar.size
        return [bool(value) for value in values] if item_type == _BOOL else values

    def _strings(self, key: str, count: int) -> list[MetadataValue]:
        # The hot loop: vocabularies of 262,144 pieces. Locals only, two bound checks an item.
        buffer, size, pos = self._buffer, self._size, self._pos
        unpack = _U64.unpack_from
        strings: list[MetadataValue] = []
        append = strings.append
        try:
            for _ in range(count):
                (length,) = unpack(buffer, pos)
                start = pos + 8
                pos = start + length
                if pos > size or length > _MAX_STRING_BYTES:
                    raise self._error(
                        f"item {len(strings)} of {key!r} claims {length} bytes at offset {start} "
                        f"of {size}",
                    )
                append(buffer[start:pos].decode())
        except struct.error as error:
            raise self._error(f"ends inside item {len(strings)} of {key!r}") from error
        except UnicodeDecodeError as error:
            raise self._error(f"item {len(strings)} of {key!r} is not UTF-8") from error
        self._pos = pos
        return strings

    def _tensor_infos(self, count: int) -> list[tuple[str, tuple[int, ...], GgmlType, int]]:
        infos: list[tuple[str, tuple[int, ...], GgmlType, int]] = []
        for index in range(count):
            name = self._string(f"the name of tensor {index}")
            num_dims = self._u32(f"the rank of {name!r}")
            if not 1 <= num_dims <= _MAX_DIMS:
                raise self._error(f"tensor {name!r} has {num_dims} dimensions, not 1 to 4")
            dims = [self._u64(f"the shape of {name!r}") for _ in range(num_dims)]
            number = self._u32(f"the type of {name!r}")
            try:
                type_ = GgmlType(number)
            except ValueError:
                raise self._error(f"tensor {name!r} has the unknown type {number}") from None
            # The file names the innermost dimension first.
            infos.append((name, tuple(reversed(dims)), type_, self._u64(f"the place of {name!r}")))
        return infos

    def _tensors(
        self,
        infos: list[tuple[str, tuple[int, ...], GgmlType, int]],
        data_start: int,
        alignment: int,
    ) -> dict[str, RawTensor]:
        tensors: dict[str, RawTensor] = {}
        whole = memoryview(self._buffer)
        spans: list[tuple[int, int, str]] = []
        for name, shape, type_, offset in infos:
            nbytes = tensor_nbytes(type_, shape, f"{self._path}: tensor {name!r}")
            start = data_start + offset
            if name in tensors:
                raise self._error(f"tensor {name!r} stands twice")
            if offset % alignment:
                raise self._error(f"tensor {name!r} at {offset} is not aligned to {alignment}")
            if start + nbytes > self._size:
                raise self._error(
                    f"tensor {name!r} needs bytes {start} to {start + nbytes}; the file has "
                    f"{self._size} (is it truncated?)",
                )
            spans.append((start, start + nbytes, name))
            tensors[name] = RawTensor(name, type_, shape, whole[start : start + nbytes])
        check_disjoint(spans, str(self._path))
        return tensors

    def _alignment(self, metadata: Mapping[str, MetadataValue]) -> int:
        alignment = metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
        if (
            not isinstance(alignment, int)
            or not 0 < alignment <= _MAX_ALIGNMENT
            or alignment & (alignment - 1)
        ):
            raise self._error(f"general.alignment is {alignment!r}, not a power of two")
        return alignment

    def _string(self, what: str) -> str:
        length = self._u64(f"the length of {what}")
        if length > _MAX_STRING_BYTES:
            raise self._error(f"{what} claims {length} bytes")
        self._need(length, what)
        start, self._pos = self._pos, self._pos + length
        try:
            return self._buffer[start : self._pos].decode()
        except UnicodeDecodeError as error:
            raise self._error(f"{what} is not UTF-8") from error

    def _u32(self, what: str) -> int:
        self._need(4, what)
        (value,) = _U32.unpack_from(self._buffer, self._pos)
        self._pos += 4
        assert isinstance(value, int), "struct gives integers"
        return value

    def _u64(self, what: str) -> int:
        self._need(8, what)
        (value,) = _U64.unpack_from(self._buffer, self._pos)
        self._pos += 8
        assert isinstance(value, int), "struct gives integers"
        return value

    def _need(self, num_bytes: int, what: str) -> None:
        if self._pos + num_bytes > self._size:
            raise self._error(
                f"ends inside {what}: {num_bytes} bytes wanted at offset {self._pos} of "
                f"{self._size} (is it truncated?)",
            )

    def _error(self, message: str) -> ModelError:
        return ModelError(f"{self._path}: {message}")
