"""safetensors: one file, or the shards that `model.safetensors.index.json` lists.

Format: eight bytes of header length (little endian), a JSON header of name → dtype, shape,
data_offsets, then the data. Files are mapped; a tensor is a view, read when it is touched.
"""

import mmap
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from roost.core.errors import ModelError, UnsupportedModel
from roost.weights.ggml import GgmlType, RawTensor, check_disjoint, tensor_nbytes

_MAX_HEADER_BYTES: Final = 100_000_000  # the format's own limit
_SINGLE: Final = "model.safetensors"
_INDEX: Final = "model.safetensors.index.json"

_DTYPES: Final[dict[str, GgmlType]] = {
    "F64": GgmlType.F64,
    "F32": GgmlType.F32,
    "F16": GgmlType.F16,
    "BF16": GgmlType.BF16,
    "I64": GgmlType.I64,
    "I32": GgmlType.I32,
    "I16": GgmlType.I16,
    "I8": GgmlType.I8,
}


@dataclass(frozen=True, slots=True)
class SafetensorsFile:
    """What one file says. header_bytes: all before the data."""

    path: Path
    tensors: Mapping[str, RawTensor]
    header_bytes: bytes


class _Entry(msgspec.Struct):
    dtype: str
    shape: list[int]
    data_offsets: tuple[int, int]


class _Index(msgspec.Struct):
    weight_map: dict[str, str]


def read_safetensors(path: Path) -> SafetensorsFile:
    """Parse and check one file. Raises ModelError naming it, what is wrong, and the numbers."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            if size < 10:
                raise ModelError(f"{path}: {size} bytes are too few for a safetensors file")
            buffer = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
        raise ModelError(f"{path}: cannot be read: {error.strerror}") from error
    header_end = 8 + int.from_bytes(buffer[:8], "little")
    if header_end > min(size, 8 + _MAX_HEADER_BYTES):
        raise ModelError(
            f"{path}: claims a header of {header_end - 8} bytes; the file has {size} bytes "
            "(is it truncated, or no safetensors file?)",
        )
    entries = _parse_header(path, buffer[8:header_end])
    whole = memoryview(buffer)
    tensors: dict[str, RawTensor] = {}
    spans: list[tuple[int, int, str]] = []
    for name, entry in entries.items():
        type_ = _DTYPES.get(entry.dtype)
        if type_ is None:
            raise UnsupportedModel(
                f"{path}: tensor {name!r} has the dtype {entry.dtype}; "
                f"{', '.join(_DTYPES)} are read",
            )
        shape = tuple(entry.shape) or (1,)
        nbytes = tensor_nbytes(type_, shape, f"{path}: tensor {name!r}")
        start, end = (header_end + offset for offset in entry.data_offsets)
        if end - start != nbytes or not header_end <= start <= end <= size:
            raise ModelError(
                f"{path}: tensor {name!r} of {nbytes} bytes is said to be at bytes {start} to "
                f"{end}; the data are at {header_end} to {size} (is it truncated?)",
            )
        spans.append((start, end, name))
        tensors[name] = RawTensor(name, type_, shape, whole[start:end])
    check_disjoint(spans, str(path))
    return SafetensorsFile(path, tensors, buffer[:header_end])


def read_folder(folder: Path) -> tuple[SafetensorsFile, ...]:
    """Every weight file of a Hugging Face folder, in the order of their names."""
    if (folder / _INDEX).is_file():
        return _read_shards(folder)
    if (folder / _SINGLE).is_file():
        return (read_safetensors(folder / _SINGLE),)
    raise ModelError(f"{folder}: holds neither {_SINGLE} nor {_INDEX}")


def _read_shards(folder: Path) -> tuple[SafetensorsFile, ...]:
    index_path = folder / _INDEX
    try:
        index = msgspec.json.decode(index_path.read_bytes(), type=_Index)
    except (OSError, msgspec.MsgspecError, RecursionError) as error:
        raise ModelError(f"{index_path}: cannot be read: {error}") from error
    names = sorted(set(index.weight_map.values()))
    for name in names:
        # An index is data from elsewhere: it may not name files outside its folder.
        if "/" in name or not name.endswith(".safetensors"):
            raise ModelError(f"{index_path}: {name!r} is no safetensors file of this folder")
        if not (folder / name).is_file():
            raise ModelError(f"{index_path}: the shard {name} is missing")
    shards = {name: read_safetensors(folder / name) for name in names}
    for tensor, name in index.weight_map.items():
        if tensor not in shards[name].tensors:
            raise ModelError(f"{index_path}: {name} does not hold the tensor {tensor!r}")
    return tuple(shards.values())


def _parse_header(path: Path, header: bytes) -> dict[str, _Entry]:
    try:
        raw = msgspec.json.decode(header, type=dict[str, msgspec.Raw])
        return {
            name: msgspec.json.decode(entry, type=_Entry)
            for name, entry in raw.items()
            if name != "__metadata__"
        }
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ModelError(f"{path}: the header is broken: {error}") from error
