"""The linear kernels: the same bits on every instruction set and for any number of rows, and right.

The judge of values is float64 over weights as the `gguf` package decodes them.
"""

import itertools
from dataclasses import dataclass

import gguf
import numpy as np
import numpy.typing as npt
import pytest
from gguf import quants

from roost import _native
from roost.kernels import FORMATS_OF_GGML, WeightFormat, aligned_bytes

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]

EPS = float(np.finfo(np.float32).eps)
# A scale that was rounded to f16 (11 bits) is off by at most this part of itself.
HALF_EPS = 2.0**-11

TYPES = {gguf.GGMLQuantizationType(number): format_ for number, format_ in FORMATS_OF_GGML.items()}
QUANTISED = [kind for kind, format_ in TYPES.items() if format_ > WeightFormat.BF16]
K_TYPES = [kind for kind in QUANTISED if kind.name.endswith("_K")]
ROWS = (1, 15, 16, 17, 33)
NUM_ROWS = (1, 2, 3, 5, 8, 17, 64)
ISAS = _native.available_isas()


def cols_of(kind: gguf.GGMLQuantizationType) -> tuple[int, ...]:
    if kind in K_TYPES:
        return (256, 768, 1536)
    if kind in QUANTISED:
        return (32, 64, 96, 576, 1536)
    return (1, 7, 32, 576)


@dataclass(frozen=True)
class Matrix:
    """A packed matrix and what it was packed from."""

    kind: gguf.GGMLQuantizationType
    weights: F32  # [rows, cols] as gguf decodes the blocks
    packed: npt.NDArray[np.uint8]
    scale: float

    @property
    def format(self) -> WeightFormat:
        return TYPES[self.kind]

    def linear(
        self,
        isa: str,
        x: F32,
        *,
        bias: F32 | None = None,
        accumulate: F32 | None = None,
        num_terms: int = 1,
    ) -> F32:
        rows, cols = self.weights.shape
        own = isa, self.format, self.packed, rows, cols, self.scale
        return _native.linear(*own, x, bias, accumulate, num_terms)

    def dequantized(self, isa: str) -> F32:
        rows, cols = self.weights.shape
        return _native.dequantize(isa, self.format, self.packed, rows, cols, self.scale)


def blocks(
    kind: gguf.GGMLQuantizationType,
    rows: int,
    cols: int,
    rng: np.random.Generator,
) -> npt.NDArray[np.uint8]:
    """Bytes of a file for the matrix: random codes under scales of a trained matrix's size."""
    if kind not in K_TYPES:
        values = rng.normal(0, 0.05, (rows, cols)).astype(np.float32)
        quantised: npt.NDArray[np.uint8] = quants.quantize(values, kind).view(np.uint8)
        return quantised
    block_cols, block_nbytes = gguf.GGML_QUANT_SIZES[kind]
    raw = rng.integers(0, 256, (rows, cols // block_cols, block_nbytes), np.uint8)
    scales = rng.uniform(1e-4, 1e-3, raw.shape[:2]).astype(np.float16)[..., None].view(np.uint8)
    if kind.name == "Q6_K":
        raw[..., 208:210] = scales
    else:
        raw[..., 0:2] = scales
        raw[..., 2:4] = scales
    joined: npt.NDArray[np.uint8] = raw.reshape(rows, -1)
    return joined


def make(kind: gguf.GGMLQuantizationType, rows: int, cols: int, seed: int = 0) -> Matrix:
    raw = blocks(kind, rows, cols, np.random.default_rng([seed, kind, rows, cols]))
    weights = np.asarray(quants.dequantize(raw, kind), np.float32).reshape(rows, cols)
    packed = aligned_bytes(_native.packed_nbytes(kind, rows, cols))
    scale = _native.pack(kind, raw.reshape(-1), rows, cols, packed)
    return Matrix(kind, weights, packed, scale)


def activations(num_rows: int, cols: int, seed: int = 1) -> F32:
    return np.random.default_rng([seed, cols]).normal(0, 1, (num_rows, cols)).astype(np.float32)


def same_bits(left: F32, right: F32) -> bool:
    return bool(np.array_equal(left.view(np.uint32), right.view(np.uint32)))


def seen_by_kernels(matrix: Matrix, x: F32, num_terms: int = 1) -> F64:
    """The activations as the kernels see them: quantised, unless the weights are floats."""
    if matrix.format <= WeightFormat.BF16:
        return x.astype(np.float64)
    q, scale, *_ = _native.quantize_rows("portable", x, num_terms)
    seen = q.astype(np.float64).reshape(*scale.shape, 32) * scale.astype(np.float64)[..., None]
    whole: F64 = seen.reshape(x.shape)
    return whole


def group_magnitudes(weights: F32) -> F64:
    """For each weight the largest magnitude in its group of 32."""
    groups = np.abs(weights.astype(np.float64)).reshape(weights.shape[0], -1, 32)
    return np.repeat(groups.max(axis=2), 32, axis=1)


@pytest.mark.parametrize("kind", TYPES, ids=lambda kind: kind.name)
@pytest.mark.parametrize("rows", ROWS)
def test_every_instruction_set_and_number_of_rows_gives_the_same_bits(
    kind: gguf.GGMLQuantizationType, rows: int
) -> None:
    for cols in cols_of(kind):
        matrix = make(kind, rows, cols)
        x = activations(max(NUM_ROWS), cols)
        judge = matrix.linear("portable", x)
        for isa in ISAS:
            for num_rows in NUM_ROWS:
                result = matrix.linear(isa, x[:num_rows])
                assert same_bits(result, judge[:num_rows]), (isa, cols, num_rows)
        if kind not in QUANTISED:
            continue
        fine = matrix.linear("portable", x, num_terms=2)
        for isa in ISAS:
            for num_rows in NUM_ROWS:
                result = matrix.linear(isa, x[:num_rows], num_terms=2)
                assert same_bits(result, fine[:num_rows]), (isa, cols, num_rows)


@pytest.mark.parametrize("kind", TYPES, ids=lambda kind: kind.name)
def test_a_row_is_the_same_anywhere_in_a_large_batch(kind: gguf.GGMLQuantizationType) -> None:
    cols = 1536 if kind in QUANTISED else 160
    matrix = make(kind, 40, cols)
    x = activations(301, cols)
    for isa, num_terms in itertools.product(ISAS, (1, 2)):
        together = matrix.linear(isa, x, num_terms=num_terms)
        for row in (0, 127, 128, 255, 256, 299, 300):
            alone = matrix.linear(isa, x[row : row + 1], num_terms=num_terms)
            assert same_bits(alone[0], together[row]), (isa, num_terms, row)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("num_terms", [1, 2])
@pytest.mark.parametrize("kind", TYPES, ids=lambda kind: kind.name)
def test_results_are_those_of_float64(
    kind: gguf.GGMLQuantizationType, num_terms: int, isa: str
) -> None:
    for cols in cols_of(kind):
        matrix = make(kind, 33, cols)
        x = activations(5, cols)
        seen = seen_by_kernels(matrix, x, num_terms)
        weights = matrix.dequantized(isa).astype(np.float64)
        if matrix.format > WeightFormat.BF16:
            # A group adds two roundings of the sum so far, and four of its own products. Codes
            # span their range in a group, so scale · code and the minimum are each at most twice
            # the group's largest weight.
            sizes = 4 * group_magnitudes(matrix.weights)
            roundings = 2 * (cols // 32) + 4
        else:
            sizes = np.abs(weights)
            roundings = cols
        tolerance = roundings * EPS * (np.abs(seen) @ sizes.T)
        error = np.abs(matrix.linear(isa, x, num_terms=num_terms) - seen @ weights.T)
        assert (error <= tolerance).all(), (cols, (error / tolerance).max())


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kind", TYPES, ids=lambda kind: kind.name)
def test_packed_weights_are_those_of_the_file(kind: gguf.GGMLQuantizationType, isa: str) -> None:
    for rows in ROWS:
        for cols in cols_of(kind):
            matrix = make(kind, rows, cols)
            decoded = matrix.dequantized(isa)
            if kind not in K_TYPES:
                assert same_bits(decoded, matrix.weights), (rows, cols)
                continue
            # Products of scales were rounded to f16: of the scale, and of the minimum, which are
            # each within twice the group's largest weight.
            tolerance = 4 * HALF_EPS * group_magnitudes(matrix.weights)
            assert (np.abs(decoded - matrix.weights.astype(np.float64)) <= tolerance).all()


@pytest.mark.parametrize("kind", K_TYPES, ids=lambda kind: kind.name)
def test_scales_that_f16_cannot_hold_survive_packing(kind: gguf.GGMLQuantizationType) -> None:
    # Products near 2^-24 · 3: f16 would round them to a few steps; the matrix's scale lifts them.
    raw = blocks(kind, 16, 256, np.random.default_rng(3)).reshape(16, -1)
    tiny = np.array([3e-7], np.float16).view(np.uint8)
    if kind.name == "Q6_K":
        raw[:, 208:210] = tiny
    else:
        raw[:, 0:2] = tiny
        raw[:, 2:4] = tiny
    weights = np.asarray(quants.dequantize(raw, kind), np.float32).reshape(16, 256)
    packed = aligned_bytes(_native.packed_nbytes(kind, 16, 256))
    scale = _native.pack(kind, raw.reshape(-1), 16, 256, packed)
    decoded = _native.dequantize("portable", TYPES[kind], packed, 16, 256, scale)
    assert np.log2(scale) == round(np.log2(scale))
    assert scale < 1e-4
    tolerance = 4 * HALF_EPS * group_magnitudes(weights)
    assert (np.abs(decoded - weights.astype(np.float64)) <= tolerance).all()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kind", TYPES, ids=lambda kind: kind.name)
def test_bias_and_residual_are_added_last(kind: gguf.GGMLQuantizationType, isa: str) -> None:
    cols = cols_of(kind)[-1]
    matrix = make(kind, 33, cols)
    for num_rows in (1, 20):
        x = activations(num_rows, cols)
        bias = activations(1, 33, seed=2)[0]
        residual = activations(num_rows, 33, seed=3)
        plain = matrix.linear(isa, x)
        assert same_bits(matrix.linear(isa, x, bias=bias), plain + bias)
        assert same_bits(matrix.linear(isa, x, accumulate=residual), residual + plain)
        both = matrix.linear(isa, x, bias=bias, accumulate=residual)
        assert same_bits(both, residual + (plain + bias))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("kind", TYPES, ids=lambda kind: kind.name)
def test_a_row_that_is_not_finite_harms_itself_only(
    kind: gguf.GGMLQuantizationType, bad: float, isa: str
) -> None:
    cols = cols_of(kind)[-1]
    matrix = make(kind, 17, cols)
    x = activations(20, cols)
    clean = matrix.linear(isa, x)
    x[7, cols // 2] = bad
    result = matrix.linear(isa, x)
    assert not np.isfinite(result[7]).any()
    others = np.arange(20) != 7
    assert same_bits(result[others], clean[others])


@pytest.mark.parametrize("isa", ISAS)
def test_activations_are_quantised_to_nearest_even(isa: str) -> None:
    x = activations(9, 576)
    x[1] = 0
    x[2] *= 1e-30
    x[3] *= 1e30
    x[4, :32] = np.arange(32) - 15.5  # 127 / 16.5 is not exact; ties come from the next row
    x[5, :32] = np.concatenate([[127.0], np.arange(31) - 15 + 0.5])
    x[6, :32] = 1e-38
    groups = x.reshape(9, -1, 32)
    largest = np.abs(groups).max(axis=2)
    is_zero = largest < np.float32(1e-35)
    inverse = np.float32(127) / np.where(is_zero, np.float32(1), largest)
    wanted = np.rint(groups * inverse[..., None]).astype(np.int8)
    wanted[is_zero] = 0
    scales = np.where(is_zero, np.float32(0), largest / np.float32(127))

    q, scale, scaled_sum, sums, first_sums = _native.quantize_rows(isa, x)

    assert np.array_equal(q, wanted.reshape(9, 576))
    assert same_bits(scale, scales)
    assert np.array_equal(sums, wanted.sum(axis=2, dtype=np.int32))
    assert np.array_equal(first_sums, wanted[..., :16].sum(axis=2, dtype=np.int32))
    assert same_bits(scaled_sum, scale * sums.astype(np.float32))
    assert wanted[5, 0, 1] == -14  # −14.5 to even


@pytest.mark.parametrize("isa", ISAS)
def test_fine_activations_keep_fifteen_bits(isa: str) -> None:
    x = activations(9, 576) * np.float32(3)
    x[4, :64] = 0
    x[5, 3] = np.float32(1e9)
    x[6, :32] = 1e-34
    groups = x.reshape(9, -1, 32)
    largest = np.abs(groups).max(axis=2)
    is_zero = largest < np.float32(1e-33)
    inverse = np.float32(32767) / np.where(is_zero, np.float32(1), largest)
    wanted = np.rint(groups * inverse[..., None]).astype(np.int32)
    wanted[is_zero] = 0

    q, scale, scaled_sum, sums, first_sums = _native.quantize_rows(isa, x, 2)

    assert np.array_equal(q, wanted.reshape(9, 576))
    assert same_bits(scale, np.where(is_zero, np.float32(0), largest / np.float32(32767)))
    assert np.array_equal(sums, wanted.sum(axis=2, dtype=np.int32))
    assert np.array_equal(first_sums, wanted[..., :16].sum(axis=2, dtype=np.int32))
    assert same_bits(scaled_sum, scale * sums.astype(np.float32))
    error = np.abs(wanted * scale.astype(np.float64)[..., None] - groups)
    assert (error <= np.maximum(largest * (0.5 / 32767 + EPS), 1e-33)[..., None]).all()


@pytest.mark.parametrize("isa", ISAS)
def test_extreme_codes_do_not_overflow(isa: str) -> None:
    # All codes and all activations at their largest: the sums that a 16-bit lane must hold.
    for kind in QUANTISED:
        cols = 256
        block_cols, block_nbytes = gguf.GGML_QUANT_SIZES[kind]
        for fill in (0x00, 0x80, 0xFF):
            raw = np.full((16, cols // block_cols, block_nbytes), fill, np.uint8)
            one = np.array([1.0], np.float16).view(np.uint8)
            if kind.name == "Q6_K":
                raw[..., 208:210] = one
            else:
                raw[..., 0:2] = one
                if kind.name in {"Q4_1", "Q5_1", "Q4_K", "Q5_K"}:
                    raw[..., 2:4] = one
            packed = aligned_bytes(_native.packed_nbytes(kind, 16, cols))
            scale = _native.pack(kind, raw.reshape(-1), 16, cols, packed)
            matrix = Matrix(kind, np.zeros((16, cols), np.float32), packed, scale)
            for sign in (1, -1):
                x = np.full((20, cols), 127 * sign, np.float32)
                # Everything is a small integer times a power of two, so float64 is exact here.
                wanted = x.astype(np.float64) @ matrix.dequantized(isa).astype(np.float64).T
                np.testing.assert_array_equal(matrix.linear(isa, x), wanted)
                # Fine: the sums that 32 bits must hold. They need more than the 24 bits of an f32.
                fine = x / np.float32(127) * np.float32(32767)
                wanted = fine.astype(np.float64) @ matrix.dequantized(isa).astype(np.float64).T
                np.testing.assert_allclose(matrix.linear(isa, fine, num_terms=2), wanted, 1e-6)


def test_eight_bits_keep_a_float_matrix_to_half_a_step() -> None:
    values = np.random.default_rng(5).normal(0, 0.02, (33, 96)).astype(np.float32)
    values[3, :32] = 0
    packed = aligned_bytes(_native.packed_nbytes(gguf.GGMLQuantizationType.Q8_0, 33, 96))
    scale = _native.quantize_matrix(values, 8, packed)
    decoded = _native.dequantize("portable", WeightFormat.U8, packed, 33, 96, scale)
    steps = np.abs(values.reshape(33, 3, 32)).max(axis=2) / 127
    # Half a step of the stored scale; the largest value may be off by that scale's rounding, too.
    tolerance = np.repeat(steps * (0.5 + 127.5 * HALF_EPS), 32, axis=1)
    assert (np.abs(decoded - values) <= tolerance).all()
    assert not decoded[3, :32].any()


def test_four_bits_keep_a_float_matrix_better_than_its_plain_range_would() -> None:
    values = np.random.default_rng(6).normal(0, 0.02, (64, 576)).astype(np.float32)
    packed = aligned_bytes(_native.packed_nbytes(gguf.GGMLQuantizationType.Q4_1, 64, 576))
    scale = _native.quantize_matrix(values, 4, packed)
    decoded = _native.dequantize("portable", WeightFormat.U4M, packed, 64, 576, scale)
    groups = values.reshape(64, -1, 32)
    low = groups.min(axis=2, keepdims=True)
    step = (groups.max(axis=2, keepdims=True) - low) / 15
    plain = np.rint((groups - low) / step) * step + low
    assert np.square(decoded - values).mean() < 0.9 * np.square(plain - groups).mean()


def test_four_bits_keep_a_constant_group() -> None:
    values = np.full((16, 32), 0.25, np.float32)
    packed = aligned_bytes(_native.packed_nbytes(gguf.GGMLQuantizationType.Q4_1, 16, 32))
    scale = _native.quantize_matrix(values, 4, packed)
    decoded = _native.dequantize("portable", WeightFormat.U4M, packed, 16, 32, scale)
    np.testing.assert_allclose(decoded, values, rtol=HALF_EPS)


def test_bad_arguments_are_refused() -> None:
    matrix = make(gguf.GGMLQuantizationType.Q4_0, 16, 64)
    x = activations(2, 64)
    with pytest.raises(ValueError, match="multiple of 32"):
        _native.packed_nbytes(2, 16, 33)
    with pytest.raises(ValueError, match="not one that is packed"):
        _native.packed_nbytes(99, 16, 64)
    with pytest.raises(ValueError, match="positive"):
        _native.packed_nbytes(2, 0, 64)
    with pytest.raises(ValueError, match="dst has"):
        _native.pack(2, np.zeros(16 * 36, np.uint8), 16, 64, aligned_bytes(64))
    with pytest.raises(ValueError, match="src has"):
        _native.pack(2, np.zeros(5, np.uint8), 16, 64, matrix.packed)
    with pytest.raises(ValueError, match="64-byte aligned"):
        _native.pack(
            2, np.zeros(16 * 36, np.uint8), 16, 64, aligned_bytes(matrix.packed.size + 1)[1:]
        )
    with pytest.raises(ValueError, match="contiguous"):
        matrix.linear("portable", activations(2, 128)[:, ::2])
    with pytest.raises(ValueError, match="dtype"):
        matrix.linear("portable", x.astype(np.float64))
    with pytest.raises(ValueError, match="a row of x"):
        matrix.linear("portable", x[:, :32].copy())
    with pytest.raises(ValueError, match="bias"):
        matrix.linear("portable", x, bias=np.zeros(15, np.float32))
    with pytest.raises(ValueError, match="accumulate"):
        matrix.linear("portable", x, accumulate=np.zeros((1, 16), np.float32))
    with pytest.raises(ValueError, match="mmx"):
        matrix.linear("mmx", x)
    with pytest.raises(ValueError, match="bits"):
        _native.quantize_matrix(x, 5, matrix.packed)
    with pytest.raises(ValueError, match="not finite"):
        _native.quantize_matrix(
            np.full((16, 64), np.nan, np.float32),
            8,
            aligned_bytes(_native.packed_nbytes(8, 16, 64)),
        )
