"""One model, opened: what its files say, nothing yet read of its weights."""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import msgspec

from roost.core.errors import ModelError, UnsupportedModel
from roost.weights.ggml import RawTensor
from roost.weights.gguf import GgufFile, read_gguf
from roost.weights.safetensors import read_folder

_SHARD: Final = re.compile(r"(?P<stem>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")
_MAX_SHARDS: Final = 10_000

# What else GGUF files carry.
_OTHER_KINDS: Final = ("adapter", "imatrix", "mmproj")

# Bytes of each tensor that its identity depends on, besides the header: checkpoints of one family
# have equal headers and sizes, and images of containers have equal times.
_SAMPLE_BYTES: Final = 256


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """A model's files. `path` is the file or folder that was named.

    metadata: a GGUF file's key-value pairs, or a folder's config.json: the hyperparameters and, of
    a GGUF file, the vocabulary (`tokenizer.*`). A folder keeps its vocabulary in files at `path`.
    """

    path: Path
    container: Literal["gguf", "safetensors"]
    architecture: str
    metadata: Mapping[str, object]
    tensors: Mapping[str, RawTensor]
    header_bytes: bytes
    weight_paths: tuple[Path, ...]

    @property
    def name(self) -> str:
        """Short, for people: the file's or the folder's name."""
        return self.path.stem if self.container == "gguf" else self.path.name

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors.values())

    def identity(self) -> str:
        """16 hex digits that change with the content: of sizes, times, headers, samples of data."""
        digest = hashlib.sha256(self.header_bytes)
        for path in self.weight_paths:
            stat = path.stat()
            digest.update(f"{stat.st_size} {stat.st_mtime_ns};".encode())
        for tensor in self.tensors.values():
            digest.update(tensor.data[:_SAMPLE_BYTES])
        return digest.hexdigest()[:16]


def open_model(path: Path) -> ModelFiles:
    """Open a .gguf file (the first shard names the others) or a Hugging Face folder.

    Raises ModelError when something is missing or broken, UnsupportedModel for weights that were
    quantised by a tool whose format is not read.
    """
    if path.is_dir():
        if (path / "config.json").is_file():
            return _open_folder(path)
        found = sorted(path.glob("*.gguf"))
        firsts = [file for file in found if _shard_number(file) in (None, 1)]
        if len(firsts) == 1:
            return _open_gguf(firsts[0])
        raise ModelError(
            f"{path}: holds no config.json and {len(firsts)} GGUF models; name a file"
            + "".join(f"\n  {file}" for file in firsts),
        )
    if not path.is_file():
        raise ModelError(f"{path}: no such file or folder")
    return _open_gguf(path)


def _open_gguf(path: Path) -> ModelFiles:
    first = read_gguf(path)
    architecture = first.metadata.get("general.architecture")
    if not isinstance(architecture, str):
        raise ModelError(f"{path}: general.architecture is missing")
    kind = first.metadata.get("general.type")
    if kind in _OTHER_KINDS:
        raise UnsupportedModel(f"{path}: holds no model but {kind!r} (general.type)")
    shards = (first, *_other_shards(path, first))
    tensors: dict[str, RawTensor] = {}
    for shard in shards:
        for name, tensor in shard.tensors.items():
            if name in tensors:
                raise ModelError(f"{shard.path}: tensor {name!r} stands in an earlier shard too")
            tensors[name] = tensor
    return ModelFiles(
        path=path,
        container="gguf",
        architecture=architecture,
        metadata=first.metadata,
        tensors=tensors,
        header_bytes=b"".join(shard.header_bytes for shard in shards),
        weight_paths=tuple(shard.path for shard in shards),
    )


def shard_names(name: str) -> tuple[str, ...]:
    """All the files of a split model, given one of them; of a whole one, itself."""
    match = _SHARD.fullmatch(name)
    if match is None:
        return (name,)
    count = min(int(match["count"]), _MAX_SHARDS)
    return tuple(f"{match['stem']}-{i + 1:05}-of-{match['count']}.gguf" for i in range(count))


def _shard_number(path: Path) -> int | None:
    match = _SHARD.fullmatch(path.name)
    return int(match["number"]) if match else None


def _other_shards(path: Path, first: GgufFile) -> list[GgufFile]:
    count = first.metadata.get("split.count", 1)
    if count in (0, 1):
        return []
    names = shard_names(path.name)
    if len(names) != count or names[0] != path.name:
        raise ModelError(
            f"{path}: one of {count} shards; name the first (…-00001-of-…) and keep their names",
        )
    return [read_gguf(path.with_name(name)) for name in names[1:]]


def _open_folder(path: Path) -> ModelFiles:
    config_path = path / "config.json"
    try:
        config = msgspec.json.decode(config_path.read_bytes(), type=dict[str, object])
    except (OSError, msgspec.MsgspecError, RecursionError) as error:
        raise ModelError(f"{config_path}: cannot be read: {error}") from error
    architectures = config.get("architectures")
    if not isinstance(architectures, list) or not architectures:
        raise ModelError(f"{config_path}: `architectures` is missing")
    quantization = config.get("quantization_config")
    if isinstance(quantization, dict):
        method = quantization.get("quant_method", "an unknown method")
        raise UnsupportedModel(
            f"{config_path}: weights quantised by {method} are not read; take the float "
            "checkpoint (--quantize packs it on load) or a GGUF file",
        )
    files = read_folder(path)
    return ModelFiles(
        path=path,
        container="safetensors",
        architecture=str(architectures[0]),
        metadata=config,
        tensors={name: tensor for file in files for name, tensor in file.tensors.items()},
        header_bytes=b"".join(file.header_bytes for file in files),
        weight_paths=tuple(file.path for file in files),
    )
