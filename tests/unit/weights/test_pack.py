"""Packing keeps every value of every type, whatever is fused, kept or mapped."""

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from gguf.constants import GGMLQuantizationType
from gguf.quants import dequantize

from roost import _native
from roost.core.errors import ModelError
from roost.kernels import PackedMatrix, Vector, WeightFormat
from roost.weights import GgmlType, ModelFiles, PackOptions, RawTensor, WeightPlanner, pack_weights
from roost.weights.ggml import BLOCKS, FLOAT_TYPES, PACKABLE_TYPES, tensor_nbytes

Floats = npt.NDArray[np.float32]

# Products of two scales are rounded to f16 when they are packed.
PRODUCT_TYPES = {GgmlType.Q4_K, GgmlType.Q5_K, GgmlType.Q6_K}
# Where the f16 scales stand in a block.
SCALE_PLACES = {
    GgmlType.Q4_0: (0,),
    GgmlType.Q4_1: (0, 2),
    GgmlType.Q5_0: (0,),
    GgmlType.Q5_1: (0, 2),
    GgmlType.Q8_0: (0,),
    GgmlType.Q4_K: (0, 2),
    GgmlType.Q5_K: (0, 2),
    GgmlType.Q6_K: (208,),
}


def random_tensor(name: str, type_: GgmlType, shape: tuple[int, ...], seed: int = 1) -> RawTensor:
    rng = np.random.default_rng(seed)
    if type_ in FLOAT_TYPES:
        values = rng.standard_normal(shape).astype(np.float32)
        data = {
            GgmlType.F32: lambda: values.view(np.uint8),
            GgmlType.F16: lambda: values.astype(np.float16).view(np.uint8),
            GgmlType.BF16: lambda: (values.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8),
        }[type_]()
        return RawTensor(name, type_, shape, data.reshape(-1).data)
    data = rng.integers(0, 256, tensor_nbytes(type_, shape, name), np.uint8)
    blocks = data.reshape(-1, BLOCKS[type_][1])
    for place in SCALE_PLACES[type_]:
        scales = rng.uniform(0.001, 0.01, len(blocks)).astype(np.float16)
        blocks[:, place : place + 2] = scales.view(np.uint8).reshape(-1, 2)
    return RawTensor(name, type_, shape, data.data)


def expected(*tensors: RawTensor) -> Floats:
    """What the gguf package makes of the tensors, stacked."""
    parts = [
        dequantize(
            np.frombuffer(tensor.data, np.uint8).reshape(tensor.shape[0], -1),
            GGMLQuantizationType(tensor.type),
        )
        for tensor in tensors
    ]
    return np.concatenate(parts)


def found(matrix: PackedMatrix) -> Floats:
    """What the kernels make of a packed matrix."""
    parts = [
        _native.dequantize(
            "portable",
            int(segment.format),
            segment.data,
            segment.rows,
            segment.cols,
            segment.scale,
        )
        for segment in matrix.segments
    ]
    return np.concatenate(parts)


def files_of(tensors: list[RawTensor], path: Path) -> ModelFiles:
    return ModelFiles(
        path=path,
        container="gguf",
        architecture="llama",
        metadata={},
        tensors={tensor.name: tensor for tensor in tensors},
        header_bytes=b"header",
        weight_paths=(path,),
    )


def packed(tensors: list[RawTensor], path: Path, options: PackOptions) -> PackedMatrix:
    """The tensors fused into one matrix. path: of the file that they pretend to come from."""
    path.touch()
    files = files_of(tensors, path)
    planner = WeightPlanner(files, lambda name: name)
    parts = [(tensor.name, tensor.shape[0]) for tensor in tensors]
    cols = tensors[0].shape[1]
    planner.matrix(*parts, cols=cols)
    return pack_weights(files, planner, options).matrix(*parts, cols=cols)


def close(type_: GgmlType, values: Floats) -> float:
    """How far packing may move a value: not at all, or by two roundings of a product to f16."""
    return 1.5 * 2.0**-10 * float(np.abs(values).max()) if type_ in PRODUCT_TYPES else 0.0


@pytest.mark.parametrize("type_", sorted(PACKABLE_TYPES), ids=lambda type_: type_.name)
@pytest.mark.parametrize("rows", [1, 16, 50])
def test_every_type_keeps_its_values(tmp_path: Path, type_: GgmlType, rows: int) -> None:
    tensor = random_tensor("t", type_, (rows, 512))
    matrix = packed([tensor], tmp_path / "m.gguf", PackOptions())
    assert (matrix.rows, matrix.cols) == (rows, 512)
    values = expected(tensor)
    assert np.abs(found(matrix) - values).max() <= close(type_, values)


def test_parts_of_one_type_become_one_segment_and_others_follow(tmp_path: Path) -> None:
    tensors = [
        random_tensor("q", GgmlType.Q5_0, (40, 256), 1),
        random_tensor("k", GgmlType.Q5_0, (8, 256), 2),
        random_tensor("v", GgmlType.Q8_0, (8, 256), 3),
    ]
    matrix = packed(tensors, tmp_path / "m.gguf", PackOptions(num_threads=2))
    assert [(segment.format, segment.rows) for segment in matrix.segments] == [
        (WeightFormat.U5, 48),
        (WeightFormat.U8, 8),
    ]
    assert np.array_equal(found(matrix), expected(*tensors))


def test_a_second_start_maps_what_the_first_packed(tmp_path: Path) -> None:
    tensors = [random_tensor("t", GgmlType.Q4_K, (33, 512))]
    options = PackOptions(cache_dir=tmp_path / "cache")
    first = packed(tensors, tmp_path / "m.gguf", options)
    (file,) = (tmp_path / "cache").iterdir()
    written = file.stat().st_mtime_ns
    second = packed(tensors, tmp_path / "m.gguf", options)
    assert file.stat().st_mtime_ns == written
    assert second.segments[0].scale == first.segments[0].scale
    assert np.array_equal(second.segments[0].data, first.segments[0].data)
    unkept = packed(tensors, tmp_path / "m.gguf", PackOptions())
    assert np.array_equal(unkept.segments[0].data, first.segments[0].data)


def test_kept_weights_are_used_where_they_are_mapped(tmp_path: Path) -> None:
    tensors = [random_tensor("t", GgmlType.Q8_0, (33, 512))]
    options = PackOptions(cache_dir=tmp_path / "cache")
    for _start in range(2):
        mapped = packed(tensors, tmp_path / "m.gguf", options)
        assert not mapped.segments[0].data.flags.writeable
        assert np.array_equal(found(mapped), expected(*tensors))


def test_changed_content_is_packed_anew(tmp_path: Path) -> None:
    options = PackOptions(cache_dir=tmp_path / "cache")
    packed([random_tensor("t", GgmlType.Q4_0, (16, 64), 1)], tmp_path / "m.gguf", options)
    other = random_tensor("t", GgmlType.Q4_0, (16, 64), 2)
    assert np.array_equal(found(packed([other], tmp_path / "m.gguf", options)), expected(other))
    assert len(list((tmp_path / "cache").iterdir())) == 2


def test_without_a_place_to_keep_it_the_pack_still_serves(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    tensor = random_tensor("t", GgmlType.Q8_0, (16, 64))
    options = PackOptions(cache_dir=tmp_path / "file" / "cache")
    assert np.array_equal(found(packed([tensor], tmp_path / "m.gguf", options)), expected(tensor))


@pytest.mark.parametrize("type_", sorted(FLOAT_TYPES), ids=lambda type_: type_.name)
def test_floats_become_eight_bits_on_load(tmp_path: Path, type_: GgmlType) -> None:
    tensor = random_tensor("t", type_, (33, 256))
    matrix = packed([tensor], tmp_path / "m.gguf", PackOptions(quantize="int8"))
    assert [segment.format for segment in matrix.segments] == [WeightFormat.U8]
    groups = expected(tensor).reshape(33, -1, 32)
    largest = np.abs(groups).max(-1, keepdims=True)
    error = np.abs(found(matrix).reshape(groups.shape) - groups)
    # Half a step, and the rounding of the scale to f16.
    assert (error <= largest * (0.5 / 127 + 2.0**-11) * 1.001).all()


@pytest.mark.parametrize("type_", sorted(FLOAT_TYPES), ids=lambda type_: type_.name)
def test_floats_become_four_bits_on_load_no_worse_than_by_their_range(
    tmp_path: Path, type_: GgmlType
) -> None:
    tensor = random_tensor("t", type_, (33, 256))
    matrix = packed([tensor], tmp_path / "m.gguf", PackOptions(quantize="int4"))
    assert [segment.format for segment in matrix.segments] == [WeightFormat.U4M]
    groups = expected(tensor).reshape(33, -1, 32).astype(np.float64)
    low = groups.min(-1, keepdims=True)
    step = (groups.max(-1, keepdims=True) - low) / 15
    plain = np.rint((groups - low) / step) * step + low
    error = ((found(matrix).reshape(groups.shape) - groups) ** 2).sum(-1)
    # A tenth for the rounding of scale and minimum to f16.
    assert (error <= ((plain - groups) ** 2).sum(-1) * 1.1).all()


def test_tables_keep_eight_bits(tmp_path: Path) -> None:
    tensor = random_tensor("token_embd.weight", GgmlType.BF16, (32, 64))
    path = tmp_path / "m"
    path.touch()
    files = files_of([tensor], path)
    planner = WeightPlanner(files, lambda name: name)
    planner.matrix(("token_embd.weight", 32), cols=64, is_table=True)
    packed_weights = pack_weights(files, planner, PackOptions(quantize="int4"))
    matrix = packed_weights.matrix(("token_embd.weight", 32), cols=64)
    assert matrix.segments[0].format == WeightFormat.U8


def test_quantisation_spares_what_is_quantised_or_does_not_divide(tmp_path: Path) -> None:
    options = PackOptions(quantize="int4")
    block = random_tensor("t", GgmlType.Q8_0, (16, 64))
    assert packed([block], tmp_path / "a", options).segments[0].format == WeightFormat.U8
    odd = random_tensor("t", GgmlType.F32, (16, 40))
    assert packed([odd], tmp_path / "b", options).segments[0].format == WeightFormat.F32


def test_values_that_are_not_finite_cannot_be_quantised(tmp_path: Path) -> None:
    tensor = random_tensor("t", GgmlType.F32, (16, 64))
    np.frombuffer(tensor.data, np.float32)[70] = np.nan
    with pytest.raises(ModelError, match="tensor 't' holds values that are not finite"):
        packed([tensor], tmp_path / "m", PackOptions(quantize="int8"))


def test_progress_counts_all_bytes_once(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    tensors = [random_tensor(name, GgmlType.Q4_0, (16, 64)) for name in ("a", "b")]
    tensors[1] = random_tensor("b", GgmlType.F32, (16, 64))
    options = PackOptions(on_progress=lambda done, total: seen.append((done, total)))
    packed(tensors, tmp_path / "m", options)
    total = sum(tensor.nbytes for tensor in tensors)
    assert seen[-1] == (total, total)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)


def test_vectors_are_joined_shifted_and_widened(tmp_path: Path) -> None:
    a = random_tensor("a", GgmlType.BF16, (5,))
    b = random_tensor("b", GgmlType.F32, (3,), 2)
    files = files_of([a, b], tmp_path)
    planner = WeightPlanner(files, lambda name: name)
    planner.vector(("a", 5), ("b", 3), shift=1.0)
    vector = pack_weights(files, planner, PackOptions()).vector(("a", 5), ("b", 3))
    assert isinstance(vector, Vector)
    wide = (np.frombuffer(a.data, np.uint16).astype(np.uint32) << 16).view(np.float32)
    plain = np.frombuffer(b.data, np.float32)
    assert np.array_equal(vector.values, np.concatenate([wide, plain]) + 1)
