"""Whole programs: right against float64, and the same bits however a step is put together."""

from collections.abc import Callable

import numpy as np
import pytest
from tests.kernels.tiny_model import (
    GREEDY,
    Piece,
    Shape,
    TinyModel,
    all_logprobs,
    score,
    score_rows,
    step,
)

from roost.kernels import ThreadPool, available_isas
from roost.programs import HeadRow

PoolOf = Callable[[int], ThreadPool]
EVERY_ISA = pytest.mark.parametrize("isa", available_isas())

SHAPES = {
    "plain": Shape(),
    "bf16 kv": Shape(kv_dtype="bf16"),
    "window": Shape(window=5, kv_dtype="bf16"),
    "all ops": Shape(
        rope="interleaved",
        activation="gelu_tanh",
        has_head_norm=True,
        has_post_norm=True,
        has_bias=True,
    ),
    "int8 kv": Shape(kv_dtype="int8"),
    "int8 window": Shape(window=5, head_dim=80, kv_dtype="int8"),
    "one head": Shape(num_heads=1, num_kv_heads=1, head_dim=80),
    "every head its own kv": Shape(num_heads=4, num_kv_heads=4, head_dim=32, kv_dtype="bf16"),
    "wide heads": Shape(num_heads=2, num_kv_heads=1, head_dim=256, window=20),
}


def tokens_of(length: int, seed: int = 0) -> list[int]:
    ids: list[int] = np.random.default_rng(seed).integers(0, 67, length).tolist()
    return ids


@EVERY_ISA
@pytest.mark.parametrize("name", SHAPES)
def test_logprobs_are_those_of_float64(name: str, isa: str, pool_of: PoolOf) -> None:
    model = TinyModel(SHAPES[name])
    program = model.program(pool_of(2), isa)
    tokens = tokens_of(50)
    # A sum of n products errs by at most n · eps relative to the sum of magnitudes; the longest
    # sums have ~100 terms of size ~1, and two layers with norms carry the error on: 100 · 2 · 2^-24
    # times a logit scale of about 5. A bf16 or int8 K or V near a rounding boundary may fall to the
    # other side (2^-9 or 1/127 of one term in ~50).
    tolerance = {"f32": 6e-5, "bf16": 1e-3, "int8": 2e-3}[model.shape.kv_dtype]
    assert np.abs(score(program, tokens, []) - model.logprobs(tokens)).max() < tolerance
    program.close()


@EVERY_ISA
def test_quantised_weights_stay_close(isa: str, pool_of: PoolOf) -> None:
    # Q8_0 weights and int8 activations: a part in 254 of the largest of 32, in each of ~9 linears.
    model = TinyModel(Shape(quantised=True))
    program = model.program(pool_of(2), isa)
    tokens = tokens_of(50)
    assert np.abs(score(program, tokens, []) - model.logprobs(tokens)).max() < 0.25
    program.close()


@pytest.mark.parametrize("name", [*SHAPES, "quantised"])
def test_every_instruction_set_gives_the_same_bits(name: str, pool_of: PoolOf) -> None:
    model = TinyModel(SHAPES.get(name, Shape(quantised=True)))
    results = []
    for isa in available_isas():
        program = model.program(pool_of(1), isa)
        results.append(score(program, tokens_of(50), []))
        program.close()
    for result in results[1:]:
        np.testing.assert_array_equal(result, results[0])


LONG = {
    "three splits": Shape(num_layers=1, kv_dtype="bf16"),
    "three splits of int8": Shape(num_layers=1, kv_dtype="int8"),
    "int8 window over runs of pages": Shape(num_layers=1, window=600, head_dim=48, kv_dtype="int8"),
    "window over a split": Shape(num_layers=1, window=600),
    "window over runs of pages": Shape(num_layers=1, window=600, head_dim=32, kv_dtype="bf16"),
    "small window": Shape(num_layers=1, window=33, kv_dtype="bf16"),
    "group of 4": Shape(num_layers=1, num_heads=4, num_kv_heads=1, quantised=True),
}


@pytest.mark.parametrize("isa", available_isas()[-1:])
@pytest.mark.parametrize("name", LONG)
def test_chunks_and_threads_do_not_change_a_bit(name: str, isa: str, pool_of: PoolOf) -> None:
    model = TinyModel(LONG[name])
    tokens = tokens_of(1200)
    whole = model.program(pool_of(1), isa, max_rows=1200)
    expected = score(whole, tokens, [])
    whole.close()
    if not model.shape.quantised:
        assert np.abs(expected - model.logprobs(tokens)).max() < 2e-3
    ragged = [1, 15, 16, 17, 3, 500, 33, 1, 1, 1]
    for num_threads, chunks in ((2, []), (3, ragged), (1, ragged), (2, [1199]), (3, [512, 512])):
        program = model.program(pool_of(num_threads), isa, max_rows=1200)
        np.testing.assert_array_equal(score(program, tokens, list(chunks)), expected)
        program.close()


@EVERY_ISA
@pytest.mark.parametrize("kv_dtype", ["bf16", "int8"])
def test_a_step_does_not_care_who_else_is_in_it(isa: str, kv_dtype: str, pool_of: PoolOf) -> None:
    model = TinyModel(Shape(kv_dtype=kv_dtype, quantised=True))
    program = model.program(pool_of(2), isa, max_rows=600)
    sequences = [tokens_of(n, seed=n) for n in (40, 7, 530, 1)]
    alone = [score(program, tokens, []) for tokens in sequences]
    # Pages in any order, not shared; prefills end in the middle, then go on beside a decode row.
    order = np.random.default_rng(3).permutation(60).tolist()
    tables = [order[:3], order[3:4], order[4:38], order[38:39]]
    cuts = [(10, 39), (3, 6), (500, 529), (1, 1)]
    got: list[list[np.ndarray]] = [[], [], [], []]
    bounds = [[0, a, b, len(t)] for (a, b), t in zip(cuts, sequences, strict=True)]
    for part in range(3):
        pieces, owners = [], []
        for i, tokens in enumerate(sequences):
            start, stop = bounds[i][part : part + 2]
            if start < stop:
                pieces.append(Piece(tokens, start, stop, tables[i]))
                owners.append(i)
        num_rows = sum(p.stop - p.start for p in pieces)
        outputs = program.run(step(pieces, score_rows(range(num_rows), program.vocab_size)))
        logprobs = all_logprobs(outputs, program.vocab_size)
        at = 0
        for i, piece in zip(owners, pieces, strict=True):
            got[i].append(logprobs[at : at + piece.stop - piece.start])
            at += piece.stop - piece.start
    for parts, expected in zip(got, alone, strict=True):
        np.testing.assert_array_equal(np.concatenate(parts), expected)
    program.close()


@pytest.mark.parametrize("isa", available_isas()[-1:])
@pytest.mark.parametrize("num_threads", [1, 3])
@pytest.mark.parametrize("name", ["plain", "bf16 kv", "int8 kv", "window"])
def test_those_that_begin_with_the_same_pages_are_as_alone(
    name: str, num_threads: int, isa: str, pool_of: PoolOf
) -> None:
    model = TinyModel(SHAPES[name])
    alone, program = (model.program(pool_of(num_threads), isa, max_rows=1200) for _ in range(2))
    common = tokens_of(1_088)
    score(program, common, [], pages=list(range(68)))
    # Beginnings of two splits and a bit, of one split, of none; some end at the edge of a split.
    kept = [1_088, 1_088, 1_088, 1_088, 1_088, 1_088, 512, 512, 512, 512, 0, 1_088, 1_088]
    tails = [1, 5, 448, 449, 17, 460, 1, 2, 512, 40, 9, 3, 30]
    free = 68
    pieces, expected = [], []
    for seed, (num_kept, num_own) in enumerate(zip(kept, tails, strict=True)):
        tokens = [*common[:num_kept], *tokens_of(num_own, seed=seed)]
        expected.append(score(alone, tokens, [600])[-1])
        num_pages = (len(tokens) + 15) // 16 - num_kept // 16
        pages = [*range(num_kept // 16), *range(free, free + num_pages)]
        free += num_pages
        if num_own > 1:
            program.run(step([Piece(tokens, num_kept, len(tokens) - 1, pages)], []))
        pieces.append(Piece(tokens, len(tokens) - 1, len(tokens), pages))
    heads = score_rows(range(len(pieces)), program.vocab_size)
    got = all_logprobs(program.run(step(pieces, heads)), program.vocab_size)
    np.testing.assert_array_equal(got, np.stack(expected))
    for one in (alone, program):
        one.close()


@EVERY_ISA
@pytest.mark.parametrize("kv_dtype", ["f32", "bf16", "int8"])
def test_a_row_that_is_not_finite_harms_only_itself(
    isa: str, kv_dtype: str, pool_of: PoolOf
) -> None:
    model = TinyModel(Shape(kv_dtype=kv_dtype))
    clean = model.program(pool_of(2), isa)
    tokens = [t % 60 for t in tokens_of(40)]
    expected = score(clean, tokens, [])
    clean.close()
    model.arrays["embed"][66] = np.nan
    program = model.program(pool_of(2), isa, max_rows=80)
    bad = [66, *tokens_of(39)]
    heads = score_rows(range(80), program.vocab_size)
    pieces = [Piece(bad, 0, 40, [3, 4, 5]), Piece(tokens, 0, 40, [0, 1, 2])]
    outputs = program.run(step(pieces, heads))
    assert outputs.faults[:40].all()
    assert not outputs.faults[40:].any()
    np.testing.assert_array_equal(all_logprobs(outputs, program.vocab_size)[40:], expected)
    # Leftovers in pages that another sequence takes over do no harm either.
    np.testing.assert_array_equal(score(program, tokens, [13, 1], pages=[5, 3, 4]), expected)
    program.close()


@pytest.mark.parametrize("kv_dtype", ["bf16", "int8"])
def test_a_copied_page_is_as_good(kv_dtype: str, pool_of: PoolOf) -> None:
    model = TinyModel(Shape(kv_dtype=kv_dtype))
    program = model.program(pool_of(1), available_isas()[-1])
    tokens = tokens_of(20)
    expected = score(program, tokens, [19])
    program.copy_pages([0, 1], [7, 9])
    rows = score_rows(range(1), program.vocab_size)
    again = program.run(step([Piece(tokens, 19, 20, [7, 9])], rows))
    np.testing.assert_array_equal(all_logprobs(again, program.vocab_size), expected[19:])
    with pytest.raises(ValueError, match="target page"):
        program.copy_pages([0], [256])
    program.close()


@pytest.mark.parametrize("kv_dtype", ["f32", "bf16"])
def test_a_page_that_was_read_is_as_good_in_another_program(kv_dtype: str, pool_of: PoolOf) -> None:
    model = TinyModel(Shape(kv_dtype=kv_dtype))
    pool = pool_of(1)
    program, other = (model.program(pool, available_isas()[-1]) for _ in range(2))
    tokens = tokens_of(20)
    expected = score(program, tokens, [19])
    kept = [program.read_page(page) for page in (0, 1)]
    assert [len(page) for page in kept] == [program.kv.page_bytes] * 2
    score(other, tokens_of(40), [39])
    for page, data in zip((9, 3), kept, strict=True):
        other.write_page(page, data)
        assert other.read_page(page) == data
    rows = score_rows(range(1), program.vocab_size)
    again = other.run(step([Piece(tokens, 19, 20, [9, 3])], rows))
    np.testing.assert_array_equal(all_logprobs(again, program.vocab_size), expected[19:])
    with pytest.raises(ValueError, match="out of range"):
        program.read_page(256)
    with pytest.raises(ValueError, match="out of range"):
        program.write_page(-1, kept[0])
    with pytest.raises(ValueError, match="another size"):
        program.write_page(1, kept[0][:-1])
    program.close()
    other.close()


def test_more_head_rows_than_a_chunk_come_in_order(pool_of: PoolOf) -> None:
    model = TinyModel(Shape())
    program = model.program(pool_of(3), available_isas()[-1], max_rows=200)
    tokens = tokens_of(200)
    rows = list(reversed(range(200)))
    heads = [HeadRow(row, GREEDY, wants_logprob=True, num_top=row % 4) for row in rows]
    outputs = program.run(step([Piece(tokens, 0, 200, list(range(13)))], heads))
    expected = score(program, tokens, [])
    for index, row in enumerate(rows):
        best = int(expected[row].argmax())
        assert outputs.token_ids[index] == best
        assert outputs.logprobs[index] == expected[row, best]
        ranked = np.lexsort((np.arange(67), -expected[row]))[: row % 4]
        assert outputs.top(index, row % 4) == tuple((int(i), expected[row, i]) for i in ranked)
    program.close()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"token_ids": [1, 67]}, r"token_ids\[1\] = 67 is no token id"),
        ({"positions": [0, 2]}, "does not follow"),
        ({"positions": [-1, 0]}, "negative"),
        ({"positions": [4095, 4096]}, "past the context"),
        ({"positions": [16, 17]}, "too few for position 17"),
        ({"pages": [256]}, r"pages\[0\] = 256 is no page"),
        ({"page_offsets": [0, 2]}, "page_offsets are out of range"),
        ({"slice_offsets": [0, 1]}, "slice_offsets must end"),
        ({"slice_offsets": [0, 0, 2]}, "differ in length"),
        ({"heads": [HeadRow(2, GREEDY)]}, r"heads\[0\] = 2 is no row"),
        ({"heads": [HeadRow(0, None, target_id=67)]}, "target_id"),
        ({"heads": [HeadRow(0, GREEDY, num_top=129)]}, "num_top"),
        ({"heads": [HeadRow(0, GREEDY, picked_ids=np.array([99], np.int32))]}, "picked_ids"),
        ({"heads": [HeadRow(0, GREEDY, banned_ids=np.array([-1], np.int32))]}, "banned_ids"),
        ({"heads": [HeadRow(0, GREEDY, allowed=np.zeros(1, np.uint32))]}, "allowed has 1 words"),
        ({"heads": [HeadRow(0, GREEDY)] * 65}, "wants the logits of 65 rows"),
    ],
)
def test_inputs_out_of_range_are_refused(
    change: dict[str, object], message: str, pool_of: PoolOf
) -> None:
    program = TinyModel(Shape()).program(pool_of(1), available_isas()[-1])
    good = step([Piece([1, 2], 0, 2, [0])], [])
    fields = {name: getattr(good, name) for name in good.__dataclass_fields__}
    for name, value in change.items():
        fields[name] = value if name == "heads" else np.array(value, np.int32)
    with pytest.raises(ValueError, match=message):
        program.run(type(good)(**fields))
    program.run(good)
    program.close()
