"""Writes GGUF files for tests, right or wrong in one chosen place."""

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

STRING, ARRAY = 8, 9
CODES = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}


@dataclass(frozen=True)
class Tensor:
    """dims: innermost first, as in the file. offset: None: the next aligned one."""

    name: str
    dims: Sequence[int]
    type: int
    data: bytes
    offset: int | None = None


@dataclass(frozen=True)
class Gguf:
    """metadata: key → (value type, value); an array's value is (item type, items)."""

    metadata: Mapping[str, tuple[int, object]] = field(default_factory=dict)
    tensors: Sequence[Tensor] = ()
    version: int = 3
    magic: bytes = b"GGUF"
    alignment: int = 32
    num_tensors: int | None = None
    num_pairs: int | None = None

    def header(self) -> bytes:
        parts = [
            self.magic,
            struct.pack("<I", self.version),
            struct.pack("<Q", len(self.tensors) if self.num_tensors is None else self.num_tensors),
            struct.pack("<Q", len(self.metadata) if self.num_pairs is None else self.num_pairs),
        ]
        for key, (type_, value) in self.metadata.items():
            parts += [string(key), struct.pack("<I", type_), encode(type_, value)]
        offset = 0
        for tensor in self.tensors:
            place = offset if tensor.offset is None else tensor.offset
            parts += [
                string(tensor.name),
                struct.pack(f"<I{len(tensor.dims)}Q", len(tensor.dims), *tensor.dims),
                struct.pack("<IQ", tensor.type, place),
            ]
            offset = place + len(padded(tensor.data, self.alignment))
        return b"".join(parts)

    def to_bytes(self) -> bytes:
        body = b"".join(padded(tensor.data, self.alignment) for tensor in self.tensors)
        return padded(self.header(), self.alignment) + body


def string(text: str | bytes) -> bytes:
    raw = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(raw)) + raw


def encode(type_: int, value: object) -> bytes:
    if type_ == STRING:
        assert isinstance(value, str | bytes)
        return string(value)
    if type_ == ARRAY:
        assert isinstance(value, tuple)
        item_type, items = value
        head = struct.pack("<IQ", item_type, len(items))
        return head + b"".join(encode(item_type, item) for item in items)
    return struct.pack("<" + CODES[type_], value)


def padded(data: bytes, alignment: int) -> bytes:
    return data + bytes(-len(data) % alignment)
