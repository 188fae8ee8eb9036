"""A model is opened by file or folder, and its identity follows its content."""

import json
import os
import struct
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file
from tests.unit.weights.gguf_writer import STRING, Gguf, Tensor

from roost.core.errors import ModelError
from roost.weights import open_model
from roost.weights.files import shard_names

LLAMA = {"general.architecture": (STRING, "llama")}


def vector(name: str, *values: float) -> Tensor:
    return Tensor(name, [len(values)], 0, struct.pack(f"<{len(values)}f", *values))


def write(path: Path, content: Gguf, time_ns: int = 10**18) -> Path:
    path.write_bytes(content.to_bytes())
    os.utime(path, ns=(time_ns, time_ns))
    return path


def test_a_gguf_file_is_a_model(tmp_path: Path) -> None:
    files = open_model(write(tmp_path / "tiny.gguf", Gguf(LLAMA, [vector("a", 1, 2)])))
    assert (files.container, files.architecture, files.name) == ("gguf", "llama", "tiny")
    assert files.metadata == {"general.architecture": "llama"}
    assert list(files.tensors) == ["a"]
    assert files.nbytes == 8


def test_a_folder_with_a_config_is_a_model(tmp_path: Path) -> None:
    save_file({"a": np.zeros(3, np.float32)}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text('{"architectures": ["LlamaForCausalLM"], "x": 1}')
    files = open_model(tmp_path)
    assert (files.container, files.architecture) == ("safetensors", "LlamaForCausalLM")
    assert files.metadata["x"] == 1
    assert files.name == tmp_path.name


def test_a_folder_with_one_gguf_file_is_that_file(tmp_path: Path) -> None:
    path = write(tmp_path / "only.gguf", Gguf(LLAMA))
    assert open_model(tmp_path).path == path
    write(tmp_path / "other.gguf", Gguf(LLAMA))
    with pytest.raises(ModelError, match=r"2 GGUF models; name a file\n.*only.*\n.*other"):
        open_model(tmp_path)


def test_the_identity_follows_size_time_header_and_data(tmp_path: Path) -> None:
    base = Gguf(LLAMA, [vector("a", 1, 2)])
    files = [
        write(tmp_path / "0.gguf", base),
        write(tmp_path / "time.gguf", base, time_ns=10**18 + 1),
        write(tmp_path / "data.gguf", Gguf(LLAMA, [vector("a", 1, 3)])),
        write(tmp_path / "header.gguf", Gguf(LLAMA, [vector("b", 1, 2)])),
        write(tmp_path / "size.gguf", Gguf(LLAMA, [vector("a", 1, 2, 3)])),
    ]
    identities = [open_model(path).identity() for path in files]
    assert len(set(identities)) == 5
    assert open_model(write(tmp_path / "copy.gguf", base)).identity() == identities[0]


def test_shards_are_found_by_the_first_ones_name(tmp_path: Path) -> None:
    split = LLAMA | {"split.count": (2, 2)}
    first = write(tmp_path / "m-00001-of-00002.gguf", Gguf(split, [vector("a", 1)]))
    second = write(tmp_path / "m-00002-of-00002.gguf", Gguf(split, [vector("b", 2)]))
    files = open_model(first)
    assert list(files.tensors) == ["a", "b"]
    assert files.weight_paths == (first, second)
    assert open_model(tmp_path).path == first
    with pytest.raises(ModelError, match="one of 2 shards; name the first"):
        open_model(second)
    write(second, Gguf(split, [vector("a", 2)]))
    with pytest.raises(ModelError, match="tensor 'a' stands in an earlier shard too"):
        open_model(first)
    second.unlink()
    with pytest.raises(ModelError, match=r"m-00002-of-00002.gguf: cannot be read"):
        open_model(first)


def test_shard_names() -> None:
    assert shard_names("m.gguf") == ("m.gguf",)
    assert shard_names("m-00002-of-00002.gguf") == (
        "m-00001-of-00002.gguf",
        "m-00002-of-00002.gguf",
    )


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ("{", "config.json: cannot be read"),
        ("[]", "config.json: cannot be read"),
        ("{}", "`architectures` is missing"),
        (json.dumps({"architectures": ["X"], "quantization_config": {}}), "are not read"),
    ],
)
def test_a_broken_config_is_refused(tmp_path: Path, config: str, message: str) -> None:
    (tmp_path / "config.json").write_text(config)
    with pytest.raises(ModelError) as raised:
        open_model(tmp_path)
    assert message in str(raised.value)


def test_what_is_no_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="absent: no such file or folder"):
        open_model(tmp_path / "absent")
    with pytest.raises(ModelError, match=r"holds no config\.json and 0 GGUF models"):
        open_model(tmp_path)
    nameless = write(tmp_path / "nameless.gguf", Gguf())
    with pytest.raises(ModelError, match=r"general\.architecture is missing"):
        open_model(nameless)


def test_what_else_gguf_files_carry_is_named(tmp_path: Path) -> None:
    adapter = LLAMA | {"general.type": (STRING, "adapter")}
    with pytest.raises(ModelError, match=r"holds no model but 'adapter'"):
        open_model(write(tmp_path / "lora.gguf", Gguf(adapter)))
