"""safetensors files are read exactly; broken ones and strange indexes are refused by name."""

import json
import struct
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

from roost.core.errors import ModelError, UnsupportedModel
from roost.weights.ggml import GgmlType
from roost.weights.safetensors import read_folder, read_safetensors
from roost.weights.values import float_values

VALUES: dict[str, npt.NDArray[np.generic]] = {
    "matrix": np.arange(6, dtype=np.float32).reshape(2, 3),
    "half": np.array([1.5, -2], np.float16),
    "scalar": np.array(3, np.int64),
}


def packed(header: object, data: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def entry(dtype: str, shape: list[int], start: int, end: int) -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}


def test_reads_what_the_library_writes(tmp_path: Path) -> None:
    save_file(VALUES, tmp_path / "m.safetensors", metadata={"format": "pt"})
    tensors = read_safetensors(tmp_path / "m.safetensors").tensors
    assert set(tensors) == set(VALUES)
    assert tensors["matrix"].shape == (2, 3)
    assert np.array_equal(float_values(tensors["matrix"]), np.arange(6))
    assert float_values(tensors["half"]).tolist() == [1.5, -2]
    assert (tensors["scalar"].type, tensors["scalar"].shape) == (GgmlType.I64, (1,))


def test_bf16_is_the_upper_half_of_f32(tmp_path: Path) -> None:
    data = struct.pack("<2H", 0x3FC0, 0xC000)
    path = tmp_path / "m.safetensors"
    path.write_bytes(packed({"t": entry("BF16", [2], 0, 4)}, data))
    assert float_values(read_safetensors(path).tensors["t"]).tolist() == [1.5, -2.0]


BROKEN = {
    "short": (b"\0\0\0", "3 bytes are too few"),
    "header length": (struct.pack("<Q", 1 << 62) + b"{}", f"claims a header of {1 << 62} bytes"),
    "no JSON": (packed(b"{'a': 1}"), "the header is broken"),
    "no entry": (packed({"t": {"dtype": "F32"}}), "the header is broken"),
    "deep": (packed(b'{"t":' + b"[" * 100_000), "the header is broken"),
    "outside": (packed({"t": entry("F32", [2], 0, 8)}, bytes(4)), "'t' of 8 bytes is said"),
    "negative": (packed({"t": entry("F32", [2], -8, 0)}, bytes(8)), "'t' of 8 bytes is said"),
    "wrong size": (packed({"t": entry("F32", [2], 0, 4)}, bytes(8)), "'t' of 8 bytes is said"),
    "shape": (packed({"t": entry("F32", [-2], 0, 8)}, bytes(8)), "the shape (-2,)"),
    "overlap": (
        packed({"a": entry("F32", [2], 0, 8), "b": entry("F32", [1], 4, 8)}, bytes(8)),
        "tensors 'a' and 'b' overlap",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_refuses_what_is_broken_and_says_what(tmp_path: Path, name: str) -> None:
    content, message = BROKEN[name]
    path = tmp_path / "m.safetensors"
    path.write_bytes(content)
    with pytest.raises(ModelError) as raised:
        read_safetensors(path)
    assert message in str(raised.value)
    assert str(path) in str(raised.value)


def test_a_type_that_is_not_read_is_named(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    path.write_bytes(packed({"t": entry("F8_E4M3", [4], 0, 4)}, bytes(4)))
    with pytest.raises(UnsupportedModel, match="tensor 't' has the dtype F8_E4M3"):
        read_safetensors(path)


WHOLE = packed({"a": entry("F32", [2], 0, 8), "b": entry("F16", [2, 1], 8, 12)}, bytes(12))


@given(
    flips=st.lists(st.tuples(st.integers(0, len(WHOLE) - 1), st.integers(0, 255)), max_size=4),
    cut=st.integers(0, len(WHOLE)),
)
@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    deadline=None,
    max_examples=200,
)
def test_damage_is_refused_or_harmless(
    tmp_path: Path, flips: list[tuple[int, int]], cut: int
) -> None:
    content = bytearray(WHOLE)
    for place, value in flips:
        content[place] = value
    path = tmp_path / "m.safetensors"
    path.write_bytes(content[:cut])
    try:
        tensors = read_safetensors(path).tensors
    except ModelError:
        return
    for tensor in tensors.values():
        tensor.data.tobytes()


def write_shards(folder: Path, **weight_map: str) -> None:
    save_file({"a": VALUES["matrix"]}, folder / "one.safetensors")
    save_file({"b": VALUES["half"]}, folder / "two.safetensors")
    index = {"metadata": {"total_size": 28}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def test_shards_are_read_by_their_index(tmp_path: Path) -> None:
    write_shards(tmp_path, a="one.safetensors", b="two.safetensors")
    files = read_folder(tmp_path)
    assert [file.path.name for file in files] == ["one.safetensors", "two.safetensors"]
    assert [list(file.tensors) for file in files] == [["a"], ["b"]]


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("three.safetensors", "the shard three.safetensors is missing"),
        ("two.safetensors", "two.safetensors does not hold the tensor 'a'"),
        ("../one.safetensors", "'../one.safetensors' is no safetensors file of this folder"),
        ("/etc/passwd", "'/etc/passwd' is no safetensors file of this folder"),
    ],
)
def test_an_index_that_lies_is_refused(tmp_path: Path, place: str, message: str) -> None:
    write_shards(tmp_path, a=place)
    with pytest.raises(ModelError) as raised:
        read_folder(tmp_path)
    assert message in str(raised.value)


def test_a_folder_without_weights_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"holds neither model\.safetensors nor"):
        read_folder(tmp_path)
