"""A GGUF file is read exactly; a broken one is refused by name, fast, and never with a crash."""

import struct
import time
from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf.constants import GGML_QUANT_SIZES
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.unit.weights.gguf_writer import ARRAY, STRING, Gguf, Tensor, string

from roost.core.errors import ModelError
from roost.weights.ggml import BLOCKS, GgmlType
from roost.weights.gguf import read_gguf

EVERYTHING = {
    "u8": (0, 200),
    "i8": (1, -100),
    "u16": (2, 60_000),
    "i16": (3, -30_000),
    "u32": (4, 4_000_000_000),
    "i32": (5, -2_000_000_000),
    "f32": (6, 0.5),
    "yes": (7, True),
    "text": (STRING, "grüße 🐓"),
    "u64": (10, 1 << 63),
    "i64": (11, -(1 << 62)),
    "f64": (12, 1e300),
    "numbers": (ARRAY, (5, [1, -2, 3])),
    "bools": (ARRAY, (7, [True, False])),
    "texts": (ARRAY, (STRING, ["a", "", "日本"])),
    "nested": (ARRAY, (ARRAY, [(5, [1, 2]), (STRING, ["x"])])),
    "empty": (ARRAY, (STRING, [])),
}
VALUES = {
    "u8": 200,
    "i8": -100,
    "u16": 60_000,
    "i16": -30_000,
    "u32": 4_000_000_000,
    "i32": -2_000_000_000,
    "f32": 0.5,
    "yes": True,
    "text": "grüße 🐓",
    "u64": 1 << 63,
    "i64": -(1 << 62),
    "f64": 1e300,
    "numbers": [1, -2, 3],
    "bools": [True, False],
    "texts": ["a", "", "日本"],
    "nested": [[1, 2], ["x"]],
    "empty": [],
}
MATRIX = Tensor("matrix", [64, 2], GgmlType.Q4_0, bytes(range(72)))
VECTOR = Tensor("vector", [3], GgmlType.F32, struct.pack("<3f", 1, 2, 3))


def write(tmp_path: Path, content: bytes) -> Path:
    path = tmp_path / "model.gguf"
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("version", [2, 3])
def test_reads_every_kind_of_value_and_tensor(tmp_path: Path, version: int) -> None:
    file = read_gguf(write(tmp_path, Gguf(EVERYTHING, [MATRIX, VECTOR], version).to_bytes()))
    assert file.metadata == VALUES
    assert list(file.tensors) == ["matrix", "vector"]
    matrix, vector = file.tensors["matrix"], file.tensors["vector"]
    assert (matrix.type, matrix.shape, matrix.data.tobytes()) == (
        GgmlType.Q4_0,
        (2, 64),
        bytes(range(72)),
    )
    assert vector.data.cast("f").tolist() == [1, 2, 3]
    assert vector.data.readonly


def test_an_alignment_of_its_own_is_kept(tmp_path: Path) -> None:
    metadata = {"general.alignment": (4, 256)}
    content = Gguf(metadata, [VECTOR, MATRIX], alignment=256).to_bytes()
    file = read_gguf(write(tmp_path, content))
    assert file.tensors["matrix"].data.tobytes() == MATRIX.data


def test_block_sizes_are_those_of_ggml() -> None:
    theirs = {int(type_): sizes for type_, sizes in GGML_QUANT_SIZES.items()}
    assert {int(type_): sizes for type_, sizes in BLOCKS.items()} == {
        number: theirs[number] for number in map(int, BLOCKS)
    }


def test_reads_what_the_gguf_package_writes(tmp_path: Path) -> None:
    path = tmp_path / "theirs.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_uint32("llama.block_count", 7)
    writer.add_array("tokenizer.ggml.tokens", ["a", "b"])
    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    writer.add_tensor("t.weight", values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    file = read_gguf(path)
    assert file.metadata["general.architecture"] == "llama"
    assert file.metadata["llama.block_count"] == 7
    assert file.metadata["tokenizer.ggml.tokens"] == ["a", "b"]
    assert file.tensors["t.weight"].shape == (2, 3)
    assert np.array_equal(np.frombuffer(file.tensors["t.weight"].data, "<f4"), values.reshape(-1))


HUGE = (1 << 63) - 1
BROKEN = {
    "magic": (Gguf(magic=b"GGML").to_bytes(), "starts with b'GGML'"),
    "version 1": (Gguf(version=1).to_bytes(), "GGUF version 1; versions 2 and 3"),
    "big-endian": (Gguf(version=3 << 24).to_bytes(), "(a big-endian file)"),
    "tensor count": (Gguf(num_tensors=HUGE).to_bytes(), f"claims {HUGE} tensors"),
    "pair count": (Gguf(num_pairs=HUGE).to_bytes(), f"claims {HUGE} metadata pairs"),
    "pair count, a little": (Gguf(num_pairs=3).to_bytes(), "ends inside the type of"),
    "key twice": (
        Gguf({"k1": (0, 1), "k2": (0, 1)}).to_bytes().replace(b"k2", b"k1"),
        "metadata key 'k1' stands twice",
    ),
    "value type": (
        Gguf({"k": (4, 7)}).to_bytes().replace(b"k\x04", b"k\x0d"),
        "metadata 'k' has the unknown value type 13",
    ),
    "item type": (
        Gguf({"k": (ARRAY, (4, [7]))}).to_bytes().replace(b"k\x09\0\0\0\x04", b"k\x09\0\0\0\x0d"),
        "metadata 'k' has the unknown item type 13",
    ),
    "depth": (
        Gguf({"k": (ARRAY, (ARRAY, [(ARRAY, [(ARRAY, [(ARRAY, [(0, [])])])])]))}).to_bytes(),
        "nests arrays deeper than 3",
    ),
    "not UTF-8": (Gguf({"k": (STRING, b"\xff\xfe")}).to_bytes(), "the value of 'k' is not UTF-8"),
    "item not UTF-8": (
        Gguf({"k": (ARRAY, (STRING, ["ok", b"\xff"]))}).to_bytes(),
        "item 1 of 'k' is not UTF-8",
    ),
    "alignment": (Gguf({"general.alignment": (4, 24)}).to_bytes(), "general.alignment is 24"),
    "tensor twice": (Gguf(tensors=[VECTOR, VECTOR]).to_bytes(), "'vector' stands twice"),
    "tensor type": (
        Gguf(tensors=[Tensor("t", [32], 4, bytes(20))]).to_bytes(),
        "tensor 't' has the unknown type 4",
    ),
    "rank": (
        Gguf(tensors=[Tensor("t", [1] * 5, 0, bytes(4))]).to_bytes(),
        "tensor 't' has 5 dimensions",
    ),
    "no rank": (Gguf(tensors=[Tensor("t", [], 0, b"")]).to_bytes(), "has 0 dimensions"),
    "empty shape": (Gguf(tensors=[Tensor("t", [4, 0], 0, b"")]).to_bytes(), "the shape (0, 4)"),
    "huge shape": (
        Gguf(tensors=[Tensor("t", [HUGE, HUGE], 0, b"")]).to_bytes(),
        "is not one that a tensor can have",
    ),
    "cut block": (
        Gguf(tensors=[Tensor("t", [48], GgmlType.Q8_0, bytes(51))]).to_bytes(),
        "rows of 48 elements are no multiple of Q8_0's block of 32",
    ),
    "unaligned": (
        Gguf(tensors=[Tensor("t", [1], 0, bytes(4), offset=4)]).to_bytes() + bytes(64),
        "tensor 't' at 4 is not aligned to 32",
    ),
    "outside": (
        Gguf(tensors=[Tensor("t", [8], 0, bytes(32), offset=1 << 40)]).to_bytes(),
        "tensor 't' needs bytes",
    ),
    "overlap": (
        Gguf(tensors=[MATRIX, Tensor("t", [8], 0, bytes(32), offset=64)]).to_bytes(),
        "tensors 'matrix' and 't' overlap at byte",
    ),
    "array count": (
        Gguf({"k": (ARRAY, (STRING, ["a"]))})
        .to_bytes()
        .replace(struct.pack("<IQ", STRING, 1), struct.pack("<IQ", STRING, HUGE)),
        f"claims {HUGE} items",
    ),
    "string length": (
        Gguf({"k": (STRING, "value")})
        .to_bytes()
        .replace(string("value"), struct.pack("<Q", HUGE) + b"value"),
        f"claims {HUGE} bytes",
    ),
    "nothing": (b"", "0 bytes are too few"),
    "text": (b"<!DOCTYPE html><html><body>not found</body></html>", "starts with b'<!DO'"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_refuses_what_is_broken_and_says_what(tmp_path: Path, name: str) -> None:
    content, message = BROKEN[name]
    path = write(tmp_path, content)
    with pytest.raises(ModelError) as raised:
        read_gguf(path)
    assert message in str(raised.value)
    assert str(path) in str(raised.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"absent\.gguf: cannot be read: No such file"):
        read_gguf(tmp_path / "absent.gguf")


WHOLE = Gguf(EVERYTHING, [MATRIX, VECTOR]).to_bytes()


@given(cut=st.integers(0, len(WHOLE) - 1))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_a_truncated_file_is_refused(tmp_path: Path, cut: int) -> None:
    path = write(tmp_path, WHOLE[:cut])
    if cut >= len(WHOLE) - 20:  # nothing but padding is lost
        read_gguf(path)
        return
    with pytest.raises(ModelError):
        read_gguf(path)


@given(
    flips=st.lists(st.tuples(st.integers(0, len(WHOLE) - 1), st.integers(0, 255)), max_size=6),
    cut=st.integers(0, len(WHOLE)),
)
@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    deadline=None,
    max_examples=400,
)
def test_damage_is_refused_or_harmless(
    tmp_path: Path, flips: list[tuple[int, int]], cut: int
) -> None:
    content = bytearray(WHOLE)
    for place, value in flips:
        content[place] = value
    try:
        file = read_gguf(write(tmp_path, bytes(content[:cut])))
    except ModelError:
        return
    for tensor in file.tensors.values():
        assert tensor.data.tobytes() is not None  # every byte can be touched


def test_many_claims_in_a_large_file_cost_little_time(tmp_path: Path) -> None:
    # 400 MB of zeros look like empty strings; the limit on items must end it.
    content = Gguf({"k": (ARRAY, (STRING, ["a"]))}).header()
    count = 40_000_000
    content = content.replace(struct.pack("<IQ", STRING, 1), struct.pack("<IQ", STRING, count))
    path = tmp_path / "zeros.gguf"
    with path.open("wb") as file:
        file.write(content)
        file.truncate(400_000_000)  # a hole: it takes no space
    started = time.perf_counter()
    with pytest.raises(ModelError, match="claims 40000000 items"):
        read_gguf(path)
    assert time.perf_counter() - started < 2


def test_a_large_vocabulary_is_read_in_a_moment(tmp_path: Path) -> None:
    tokens = [f"token{i}" for i in range(262_144)]
    path = write(tmp_path, Gguf({"tokens": (ARRAY, (STRING, tokens))}).to_bytes())
    started = time.perf_counter()
    assert read_gguf(path).metadata["tokens"] == tokens
    assert time.perf_counter() - started < 5  # 0.1 s when nothing else runs
