"""Row kernels against their formulas in float64, in every instruction set, with awkward tails."""

import numpy as np
import numpy.typing as npt
import pytest

from roost import _native
from roost.kernels import available_isas

F32 = npt.NDArray[np.float32]
EPS = 2.0**-24  # half a unit in the last place of 1, relative
LENGTHS = (1, 15, 16, 17, 31, 64, 576, 1000)
EVERY_ISA = pytest.mark.parametrize("isa", available_isas())


def row(length: int, seed: int = 0, scale: float = 1.0) -> F32:
    return (np.random.default_rng(seed).standard_normal(length) * scale).astype(np.float32)


@EVERY_ISA
@pytest.mark.parametrize("length", LENGTHS)
def test_rms_norm(isa: str, length: int) -> None:
    x, w = row(length), row(length, 1)
    wide = x.astype(np.float64)
    expected = wide * w / np.sqrt((wide**2).mean() + 1e-5)
    # Positive terms: the sum's relative error is below (length / 16 + 5) eps; the root halves it;
    # mean, + eps, root, reciprocal and two products add six roundings.
    tolerance = ((length / 16 + 5) / 2 + 6) * EPS
    np.testing.assert_allclose(_native.rms_norm(isa, x, w, 1e-5), expected, rtol=tolerance)


@EVERY_ISA
@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
def test_gated(isa: str, length: int, activation: str) -> None:
    gate, up = row(length, scale=4.0), row(length, 1)
    g = gate.astype(np.float64)
    if activation == "silu":
        expected = g / (1 + np.exp(-g)) * up
        z = np.abs(g)
    else:
        inner = np.sqrt(2 / np.pi) * (g + 0.044715 * g**3)
        expected = g / (1 + np.exp(-2 * inner)) * up
        z = np.abs(2 * inner)
    # exp errs by 4 half-ulps; its argument by 4 (times its size); +, /, · round once each.
    tolerance = (4 + 4 * z + 3) * EPS
    got = _native.gated(isa, gate, up, 0 if activation == "silu" else 1)
    assert (np.abs(got - expected) <= tolerance * np.abs(expected) + 1e-37).all()


@EVERY_ISA
def test_gated_at_the_ends(isa: str) -> None:
    gate = np.array([-1e30, -200, -0.0, 0.0, 200, 1e30, np.nan], np.float32)
    got = _native.gated(isa, gate, np.ones(7, np.float32), 0)
    assert np.abs(got[:2]).max() < 1e-6
    np.testing.assert_array_equal(got[2:6], gate[2:6])
    assert np.isnan(got[6])


@EVERY_ISA
def test_exp_errs_by_less_than_two_ulp(isa: str) -> None:
    # One term a call: the sum is the value itself.
    x = np.concatenate([np.linspace(-87, 0, 20001), -np.logspace(-8, 1.9, 2000)]).astype(np.float32)
    ids, got = _native.select(isa, x, -np.inf, np.inf, 0.0, 1.0)
    np.testing.assert_array_equal(ids, np.arange(len(x)))
    expected = np.exp(x.astype(np.float64))
    assert (np.abs(got - expected) / np.spacing(expected.astype(np.float32))).max() < 2.0


@EVERY_ISA
@pytest.mark.parametrize("length", LENGTHS)
def test_add_is_exact(isa: str, length: int) -> None:
    x, y = row(length), row(length, 1)
    np.testing.assert_array_equal(_native.add(isa, x, y), x + y)


@EVERY_ISA
@pytest.mark.parametrize("style", ["interleaved", "half"])
@pytest.mark.parametrize(("head_dim", "rotary_dim"), [(64, 64), (80, 80), (96, 32), (16, 2)])
def test_rope(isa: str, style: str, head_dim: int, rotary_dim: int) -> None:
    x = row(head_dim)
    angles = np.linspace(0, 3, rotary_dim // 2)
    table = np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)
    got = _native.rope(isa, x, table.reshape(-1), 0 if style == "interleaved" else 1)
    half = rotary_dim // 2
    first = slice(0, rotary_dim, 2) if style == "interleaved" else slice(0, half)
    second = slice(1, rotary_dim, 2) if style == "interleaved" else slice(half, rotary_dim)
    pairs = (x[first] + 1j * x[second].astype(np.complex128)) * (table[:, 0] + 1j * table[:, 1])
    size = np.abs(x[first]) + np.abs(x[second])
    assert (np.abs(got[first] - pairs.real) <= 2 * EPS * size).all()
    assert (np.abs(got[second] - pairs.imag) <= 2 * EPS * size).all()
    np.testing.assert_array_equal(got[rotary_dim:], x[rotary_dim:])


@EVERY_ISA
@pytest.mark.parametrize("length", [1, 15, 16, 255, 256, 257, 1000, 49152])
def test_scan_finds_the_first_maximum(isa: str, length: int) -> None:
    x = row(length)
    assert _native.scan(isa, x) == (float(x.max()), int(x.argmax()), True)
    for at in {0, length // 2, length - 1}:
        tied = x.copy()
        tied[at:] = 9.0
        assert _native.scan(isa, tied) == (9.0, at, True)
        for bad in (np.nan, np.inf, -np.inf):
            tied[at] = bad
            assert not _native.scan(isa, tied)[2]
    assert _native.scan(isa, np.full(length, -np.inf, np.float32))[:2] == (-np.inf, 0)


@EVERY_ISA
@pytest.mark.parametrize("length", [1, 17, 1023, 1025, 49152])
def test_sum_exp(isa: str, length: int) -> None:
    x = row(length, scale=3.0)
    x[0] = -np.inf  # a banned token adds nothing
    maximum = float(x.max()) if length > 1 else 0.0
    expected = np.exp((x.astype(np.float64) - maximum) * 0.5).sum()
    # 64 terms a lane, then 4 foldings; exp errs by 2 ulp, its argument by 2 roundings of up to 15.
    got = _native.sum_exp(isa, x, maximum, 0.5)
    assert got == pytest.approx(expected, rel=(68 + 4 + 30) * EPS, abs=0)


@EVERY_ISA
@pytest.mark.parametrize("length", [1, 16, 100, 4099])
def test_select_takes_the_half_open_range(isa: str, length: int) -> None:
    x = row(length)
    x[::7] = 0.25
    low, high = 0.25, float(np.sort(x)[-1])
    ids, weights = _native.select(isa, x, low, high, high, 2.0)
    np.testing.assert_array_equal(ids, np.flatnonzero((x >= low) & (x < high)))
    expected = np.exp((x[ids].astype(np.float64) - high) * 2)
    np.testing.assert_allclose(weights, expected, rtol=4 * EPS + 20 * EPS)


def test_every_instruction_set_gives_the_same_bits() -> None:
    judge, *others = available_isas()
    for isa in others:
        for length in LENGTHS:
            x, w = row(length, scale=5.0), row(length, 1)
            for call in (
                lambda name, x=x, w=w: _native.rms_norm(name, x, w, 1e-6),
                lambda name, x=x, w=w: _native.gated(name, x, w, 0),
                lambda name, x=x, w=w: _native.gated(name, x, w, 1),
                lambda name, x=x: _native.rope(name, x, x[: len(x) // 2 * 2], 0),
                lambda name, x=x: _native.rope(name, x, x[: len(x) // 2 * 2], 1),
                lambda name, x=x: _native.sum_exp(name, x, 3.0, 0.7),
                lambda name, x=x: _native.select(name, x, -1.0, 1.0, 3.0, 0.7)[1],
            ):
                np.testing.assert_array_equal(call(isa), call(judge))


def test_uniform_is_philox() -> None:
    # Random123's known answer for philox4x32-10 with counter and key zero.
    words = (0x6627E8D5, 0xE169C58D)
    expected = ((words[0] >> 5) * 2**26 + (words[1] >> 6)) * 2.0**-53
    assert _native.uniform(0, 0) == expected
    draws = np.array([_native.uniform(7, position) for position in range(4000)])
    assert 0 <= draws.min() < draws.max() < 1
    assert draws.mean() == pytest.approx(0.5, abs=4 * 12**-0.5 / 4000**0.5)
    assert len(set(draws.tolist())) == 4000
