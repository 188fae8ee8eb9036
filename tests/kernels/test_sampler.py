"""Choosing tokens, against a plain float64 sampler that sorts everything."""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
from tests.kernels.tiny_model import Piece, step

from roost import _native
from roost.kernels import PackedMatrix, ThreadPool, available_isas
from roost.programs import CpuBuilder, CpuProgram, HeadRow, KvShape, RowSampling, StepOutputs

PoolOf = Callable[[int], ThreadPool]
F32 = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int32]
EVERY_ISA = pytest.mark.parametrize("isa", available_isas())
NUM_ROWS = 16


def ids_of(*ids: int) -> Ids:
    return np.array(ids, np.int32)


def logits_program(logits: F32, pool: ThreadPool, isa: str) -> CpuProgram:
    """A program whose row for token t has the logits `logits[t]`: the identity embeds."""
    rows, vocab = logits.shape
    b = CpuBuilder(
        max_rows=rows,
        max_logits_rows=4 * rows,
        isa=isa,
        pool=pool,
        kv=KvShape(1, 1, 16),
        num_pages=4,
        max_context_tokens=64,
    )

    def f32(values: F32) -> PackedMatrix:
        raw = np.ascontiguousarray(values, np.float32).reshape(-1).view(np.uint8)
        return PackedMatrix.pack(0, raw, *values.shape)

    b.logits(b.embed(f32(np.eye(rows, dtype=np.float32))), f32(logits.T))
    program = b.finish()
    assert program.vocab_size == vocab
    return program


def run(program: CpuProgram, heads: list[HeadRow]) -> StepOutputs:
    tokens = list(range(NUM_ROWS))
    return program.run(step([Piece(tokens, 0, NUM_ROWS, [0])], heads))


def edited(logits: F32, head: HeadRow) -> F32:
    """The logits after penalties, bias and bans, in f32."""
    s = head.sampling
    assert s is not None
    x = logits.copy()
    prompt = [] if head.prompt_ids is None else head.prompt_ids.tolist()
    generated = [] if head.generated_ids is None else head.generated_ids.tolist()
    for token in set(prompt) | set(generated) if s.has_penalties else ():
        factor = np.float32(s.repetition_penalty)
        x[token] = x[token] / factor if x[token] > 0 else x[token] * factor
        x[token] -= np.float32(s.frequency_penalty) * np.float32(generated.count(token))
        x[token] -= np.float32(s.presence_penalty) if token in generated else np.float32(0)
    for token, value in zip(s.bias_ids, s.bias_values, strict=True):
        x[token] += value
    if head.banned_ids is not None:
        x[head.banned_ids] = -np.inf
    if head.allowed is not None:
        bits = np.unpackbits(head.allowed.view(np.uint8), bitorder="little")[: len(x)]
        x[bits == 0] = -np.inf
    return x


def judge(logits: F32, head: HeadRow) -> tuple[int, bool]:
    """The token, and whether the draw is clear of a boundary.

    Weights in f32 err by 2 ulp and the rounding of their exponent: sums by less than 3e-6.
    """
    s = head.sampling
    assert s is not None
    x = edited(logits, head).astype(np.float64)
    if s.temperature < 1e-6 or s.top_k == 1:
        return int(x.argmax()), True
    order = np.lexsort((np.arange(len(x)), -x))
    if s.top_k:
        order = order[: s.top_k]
    p = np.exp((x[order] - x.max()) / s.temperature)
    p /= p.sum()
    margin = 1.0
    if s.top_p < 1:
        sums = np.cumsum(p)
        kept = int(np.searchsorted(sums, s.top_p)) + 1
        margin = min(margin, np.abs(sums - s.top_p).min())
        order, p = order[:kept], p[:kept]
    keep = p >= s.min_p * p[0]
    order, p = order[keep], p[keep] / p[keep].sum()
    u = _native.uniform(s.seed, head.position)
    sums = np.cumsum(p)
    margin = min(margin, np.abs(sums - u).min())
    return int(order[min(len(order) - 1, np.searchsorted(sums, u, side="right"))]), margin > 3e-6


KINDS = {
    "peaked": lambda rng, n: rng.standard_normal((NUM_ROWS, n)) * 4,
    "flat": lambda rng, n: rng.standard_normal((NUM_ROWS, n)) * 0.01,
    "steps": lambda rng, n: rng.integers(-3, 4, (NUM_ROWS, n)),  # ties everywhere
    "far apart": lambda rng, n: rng.standard_normal((NUM_ROWS, n)) * 60,
}
SAMPLINGS = [
    RowSampling(temperature=1.0),
    RowSampling(temperature=0.3),
    RowSampling(temperature=2.5),
    RowSampling(temperature=1.0, top_k=1),
    RowSampling(temperature=1.0, top_k=5),
    RowSampling(temperature=1.5, top_k=40, top_p=0.8),
    RowSampling(temperature=1.0, top_p=0.5),
    RowSampling(temperature=1.0, top_p=0.999),
    RowSampling(temperature=1.0, min_p=0.1),
    RowSampling(temperature=0.8, top_k=50, top_p=0.95, min_p=0.02),
    RowSampling(temperature=1e-30),
]


def seeded(sampling: RowSampling, seed: int) -> RowSampling:
    fields = {name: getattr(sampling, name) for name in RowSampling.__dataclass_fields__}
    return RowSampling(**{**fields, "seed": seed})


@EVERY_ISA
@pytest.mark.parametrize("vocab", [5, 67, 3000])
@pytest.mark.parametrize("kind", KINDS)
def test_draws_are_those_of_a_full_sort(kind: str, vocab: int, isa: str, pool_of: PoolOf) -> None:
    rng = np.random.default_rng(5)
    logits = KINDS[kind](rng, vocab).astype(np.float32)
    program = logits_program(logits, pool_of(2), isa)
    num_clear = 0
    for sampling in SAMPLINGS:
        heads = [
            HeadRow(row, seeded(sampling, int(rng.integers(2**63))), int(rng.integers(10**6)))
            for row in list(range(NUM_ROWS)) * 2
        ]
        outputs = run(program, heads)
        assert not outputs.faults.any()
        for head, token in zip(heads, outputs.token_ids.tolist(), strict=True):
            expected, is_clear = judge(logits[head.row], head)
            assert token == expected or not is_clear
            num_clear += is_clear
    assert num_clear > 0.7 * 32 * len(SAMPLINGS)
    program.close()


@EVERY_ISA
def test_edits_come_in_order(isa: str, pool_of: PoolOf) -> None:
    rng = np.random.default_rng(6)
    vocab = 100
    logits = (rng.standard_normal((NUM_ROWS, vocab)) * 2).astype(np.float32)
    program = logits_program(logits, pool_of(2), isa)
    heads = []
    for row in range(NUM_ROWS):
        sampling = RowSampling(
            temperature=[0.0, 1.0][row % 2],
            repetition_penalty=1.3,
            frequency_penalty=0.4,
            presence_penalty=0.7 if row % 3 else 0.0,
            seed=row,
            bias_ids=rng.integers(0, vocab, 4).astype(np.int32),
            bias_values=rng.standard_normal(4).astype(np.float32),
        )
        best = int(logits[row].argmax())
        allowed = rng.integers(0, 2**32, 4, np.uint64).astype(np.uint32)
        heads.append(
            HeadRow(
                row,
                sampling,
                position=row,
                wants_logprob=True,
                picked_ids=ids_of(0, 7),
                prompt_ids=rng.integers(0, vocab, 30).astype(np.int32),
                generated_ids=ids_of(best, best, best, 3),
                banned_ids=ids_of(5, 6) if row % 4 else None,
                allowed=allowed if row % 5 == 0 else None,
            )
        )
    outputs = run(program, heads)
    for index, head in enumerate(heads):
        expected, is_clear = judge(logits[head.row], head)
        assert outputs.token_ids[index] == expected or not is_clear
        # Logprobs are of the raw logits.
        raw = logits[head.row].astype(np.float64)
        logprobs = raw - raw.max() - np.log(np.exp(raw - raw.max()).sum())
        assert outputs.logprobs[index] == pytest.approx(logprobs[expected], abs=2e-6)
        assert outputs.picked(index) == pytest.approx(logprobs[[0, 7]].tolist(), abs=2e-6)
    program.close()


@EVERY_ISA
@pytest.mark.parametrize("vocab", [40, 130, 5000])
@pytest.mark.parametrize("kind", KINDS)
def test_top_logprobs_are_sorted_with_ties_by_id(
    kind: str, vocab: int, isa: str, pool_of: PoolOf
) -> None:
    logits = KINDS[kind](np.random.default_rng(8), vocab).astype(np.float32)
    program = logits_program(logits, pool_of(2), isa)
    heads = [
        HeadRow(row, None, target_id=row, num_top=min(128, [0, 1, 20, 128][row % 4]))
        for row in range(NUM_ROWS)
    ]
    outputs = run(program, heads)
    for row, head in enumerate(heads):
        raw = logits[row].astype(np.float64)
        logprobs = raw - raw.max() - np.log(np.exp(raw - raw.max()).sum())
        order = np.lexsort((np.arange(vocab), -raw))[: head.num_top]
        count = len(order)
        np.testing.assert_array_equal(outputs.top_ids[row, :count], order)
        np.testing.assert_allclose(outputs.top_logprobs[row, :count], logprobs[order], atol=3e-5)
        assert (outputs.top_ids[row, count : head.num_top] == -1).all()
        assert outputs.token_ids[row] == row
        assert outputs.logprobs[row] == pytest.approx(logprobs[row], abs=3e-5)
    program.close()


def test_greedy_takes_the_lowest_id_and_no_logprob_is_nan(pool_of: PoolOf) -> None:
    logits = np.zeros((NUM_ROWS, 50), np.float32)
    logits[:, 17] = logits[:, 30] = 2.0
    program = logits_program(logits, pool_of(1), available_isas()[-1])
    outputs = run(program, [HeadRow(0, RowSampling()), HeadRow(1, RowSampling(), num_top=2)])
    assert outputs.token_ids.tolist() == [17, 17]
    assert np.isnan(outputs.logprobs).all()
    assert [token for token, _ in outputs.top(1, 2)] == [17, 30]
    program.close()


def test_frequencies_are_those_of_the_distribution(pool_of: PoolOf) -> None:
    # 4,000 draws: each count within four standard deviations.
    p = np.array([0.5, 0.25, 0.15, 0.1])
    logits = np.tile(np.log(p).astype(np.float32), (NUM_ROWS, 1))
    program = logits_program(logits, pool_of(2), available_isas()[-1])
    counts = np.zeros(4, int)
    for start in range(0, 4000, 50):
        sampling = RowSampling(temperature=1.0, seed=99)
        outputs = run(program, [HeadRow(0, sampling, start + i) for i in range(50)])
        counts += np.bincount(outputs.token_ids, minlength=4)
    assert (np.abs(counts - 4000 * p) < 4 * np.sqrt(4000 * p * (1 - p))).all()
    program.close()


def test_a_row_with_nothing_to_choose_is_a_fault(pool_of: PoolOf) -> None:
    logits = np.zeros((NUM_ROWS, 40), np.float32)
    program = logits_program(logits, pool_of(2), available_isas()[-1])
    nothing = np.zeros(2, np.uint32)
    one = nothing.copy()
    one[1] = 2  # token 33
    heads = [
        HeadRow(0, RowSampling(), allowed=nothing),
        HeadRow(1, RowSampling(temperature=1.0), allowed=one),
        HeadRow(2, RowSampling(), banned_ids=np.arange(39, dtype=np.int32)),
    ]
    outputs = run(program, heads)
    assert outputs.faults.tolist() == [True, False, False]
    assert outputs.token_ids[1:].tolist() == [33, 39]
    program.close()


def test_rows_threads_and_company_do_not_change_a_bit(pool_of: PoolOf) -> None:
    rng = np.random.default_rng(2)
    logits = (rng.standard_normal((NUM_ROWS, 700)) * 3).astype(np.float32)
    heads = [
        HeadRow(
            row, seeded(SAMPLINGS[row % len(SAMPLINGS)], row), row, num_top=row, wants_logprob=True
        )
        for row in range(NUM_ROWS)
    ]
    results = []
    for isa in available_isas():
        for num_threads in (1, 2, 3):
            program = logits_program(logits, pool_of(num_threads), isa)
            together = run(program, heads)
            results.append(together)
            for index, head in enumerate(heads):
                alone = run(program, [head])
                assert alone.token_ids[0] == together.token_ids[index]
                assert alone.logprobs[0] == together.logprobs[index]
                assert alone.top(0, index) == together.top(index, index)
            program.close()
    for other in results[1:]:
        np.testing.assert_array_equal(other.token_ids, results[0].token_ids)
        np.testing.assert_array_equal(other.logprobs, results[0].logprobs)
