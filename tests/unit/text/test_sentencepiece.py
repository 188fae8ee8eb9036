from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roost.core.errors import ModelError
from roost.text import Tokenizer, TokenType, VocabKind, VocabSpec

BYTES = [f"<0x{byte:02X}>" for byte in range(256)]


def vocab(
    pieces: dict[str, float],
    *,
    add_space_prefix: bool = False,
    types: dict[str, TokenType] | None = None,
) -> VocabSpec:
    """<unk>, <s>, </s>, the bytes from 3 on, and the given pieces from 259 on."""
    kinds = types or {}
    return VocabSpec(
        kind=VocabKind.SENTENCEPIECE,
        pieces=["<unk>", "<s>", "</s>", *BYTES, *pieces],
        types=[2, 3, 3, *[TokenType.BYTE] * 256, *[kinds.get(p, 1) for p in pieces]],
        scores=[0.0] * 259 + list(pieces.values()),
        bos_id=1,
        eos_id=2,
        unk_id=0,
        eos_ids=frozenset({2}),
        add_bos=True,
        add_space_prefix=add_space_prefix,
    )


def pieces_of(spec: VocabSpec, text: str) -> list[str]:
    tokenizer = Tokenizer(spec)
    return [tokenizer.piece(i) for i in tokenizer.encode(text, add_special=False)]


def greedy(spec: VocabSpec, text: str) -> list[str]:
    """The definition, with no cleverness: merge the best pair, leftmost of equals, until none."""
    scores = {p: spec.scores[i] for i, p in enumerate(spec.pieces) if spec.types[i] == 1}
    symbols = list(text.replace(" ", "\u2581"))
    while True:
        pairs = [
            (-scores[left + right], at)
            for at, (left, right) in enumerate(pairwise(symbols))
            if left + right in scores
        ]
        if not pairs:
            break
        at = min(pairs)[1]
        symbols[at : at + 2] = [symbols[at] + symbols[at + 1]]
    out = []
    for symbol in symbols:
        known = symbol in scores
        out += [symbol] if known else [f"<0x{byte:02X}>" for byte in symbol.encode()]
    return out


def test_the_best_pair_merges_first() -> None:
    singles = dict.fromkeys("abc", -9.0)
    assert pieces_of(vocab({**singles, "ab": -1, "bc": -2, "abc": -3}), "abc") == ["abc"]
    assert pieces_of(vocab({**singles, "ab": -1, "bc": -2}), "abc") == ["ab", "c"]
    assert pieces_of(vocab({**singles, "ab": -2, "bc": -1}), "abc") == ["a", "bc"]


def test_the_leftmost_of_equals_merges_first() -> None:
    assert pieces_of(vocab({"a": -9, "aa": -1}), "aaa") == ["aa", "a"]


def test_unknown_characters_become_bytes() -> None:
    assert pieces_of(vocab({"a": -1}), "aé") == ["a", "<0xC3>", "<0xA9>"]
    tokenizer = Tokenizer(vocab({"a": -1, "\u2581": -2}))
    assert tokenizer.decode(tokenizer.encode("aé 😀a")) == "aé 😀a"
    assert tokenizer.token_bytes(3 + 0xC3) == b"\xc3"


def test_unknown_characters_become_unk_where_there_are_no_bytes() -> None:
    spec = VocabSpec(
        kind=VocabKind.SENTENCEPIECE,
        pieces=["<unk>", "a"],
        types=[2, 1],
        scores=[0, -1],
        unk_id=0,
    )
    assert Tokenizer(spec).encode("aé") == [1, 0, 0]
    with pytest.raises(ModelError, match="neither all 256 byte pieces nor an unknown one"):
        Tokenizer(VocabSpec(kind=VocabKind.SENTENCEPIECE, pieces=["a"], types=[1], scores=[-1]))


def test_a_space_goes_before_text_that_follows_nothing_or_a_special_token() -> None:
    spec = vocab({"a": -1, "\u2581": -2, "\u2581a": -3}, add_space_prefix=True)
    assert pieces_of(spec, "a a") == ["\u2581a", "\u2581a"]
    assert pieces_of(spec, "</s>a") == ["</s>", "\u2581a"]
    tokenizer = Tokenizer(spec)
    assert tokenizer.decode(tokenizer.encode("a a")) == "a a"
    assert tokenizer.decode(tokenizer.encode(" a")) == " a"
    assert tokenizer.decode(tokenizer.encode("</s>a")) == "a"
    assert tokenizer.encode("") == [1]


def test_an_unused_piece_falls_back_to_its_parts() -> None:
    pieces = {"a": -9.0, "b": -9.0, "c": -9.0, "ab": -1.0, "abc": -2.0}
    spec = vocab(pieces, types={"ab": TokenType.UNUSED})
    assert pieces_of(spec, "abc") == ["abc"]
    assert pieces_of(spec, "ab") == ["a", "b"]


def test_text_never_spells_a_control_token() -> None:
    spec = vocab({**dict.fromkeys("</s>", -9.0), "</": -1, "s>": -2})
    assert pieces_of(spec, "</s>") == ["</s>"]
    tokenizer = Tokenizer(spec)
    assert 2 not in tokenizer.encode("</s>", parse_special=False)


def test_runs_of_spaces_that_are_whole_tokens_are_found_under_either_sign() -> None:
    spec = vocab({"a": -9, "\u2581": -9, "   ": 0}, types={"   ": TokenType.USER_DEFINED})
    assert pieces_of(spec, "a    a") == ["a", "   ", "\u2581", "a"]
    assert pieces_of(spec, "a\u2581\u2581\u2581a") == ["a", "   ", "a"]


texts = st.text("ab \u2581é", max_size=24)
vocabularies = st.dictionaries(
    st.text("ab\u2581", min_size=1, max_size=4), st.integers(-6, 0).map(float), max_size=14
)


@given(vocabularies, texts)
def test_cutting_at_words_changes_nothing(pieces: dict[str, float], text: str) -> None:
    spec = vocab(pieces)
    assert pieces_of(spec, text) == greedy(spec, text)


@given(vocabularies, st.lists(texts, max_size=4))
def test_what_was_seen_before_changes_nothing(pieces: dict[str, float], seen: list[str]) -> None:
    spec = vocab(pieces)
    tokenizer = Tokenizer(spec)
    once = [tokenizer.encode(text) for text in seen]
    assert [tokenizer.encode(text) for text in seen] == once
    assert [Tokenizer(spec).encode(text) for text in seen] == once
