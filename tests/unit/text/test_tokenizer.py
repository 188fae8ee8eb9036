import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roost.core.errors import ModelError, RequestError, UnsupportedModel
from roost.text import Tokenizer, TokenType, VocabKind, VocabSpec, vocab_from_gguf
from roost.text.pieces import byte_alphabet
from roost.text.pretokenizers import PRE_TOKENIZERS
from roost.text.special import SpecialSplitter

SIGNS = {byte: sign for sign, byte in byte_alphabet().items()}


def byte_level(
    pre: str = "gpt-2", *, add_bos: bool = True, types: dict[str, TokenType] | None = None
) -> Tokenizer:
    """All bytes (ids 0–255), a few merges, and the given whole tokens behind them."""
    merges = ["Ġ a", "Ġa b", "a b", "ab c"]
    whole = types or {"<s>": TokenType.CONTROL, "</s>": TokenType.CONTROL}
    pieces = [SIGNS[b] for b in range(256)] + ["ab", "abc", "Ġa", "Ġab", *whole]
    spec = VocabSpec(
        kind=VocabKind.BYTE_LEVEL,
        pieces=pieces,
        types=[TokenType.NORMAL] * 260 + list(whole.values()),
        merges=merges,
        pre=pre,
        bos_id=260,
        eos_id=261,
        eos_ids=frozenset({261}),
        add_bos=add_bos,
    )
    return Tokenizer(spec)


def test_merges_apply_within_words() -> None:
    tokenizer = byte_level(add_bos=False)
    assert tokenizer.encode("abc ab b") == [257, 259, 32, ord("b")]


def test_a_prompt_begins_with_exactly_one_bos() -> None:
    tokenizer = byte_level()
    assert tokenizer.encode("ab") == [260, 256]
    assert tokenizer.encode("<s>ab") == [260, 256]
    assert tokenizer.encode("<s><s>ab") == [260, 260, 256]
    assert tokenizer.encode("") == [260]
    assert tokenizer.encode("ab", add_special=False) == [256]
    assert byte_level(add_bos=False).encode("ab") == [256]


def test_special_tokens_in_text_count_only_when_asked_for() -> None:
    tokenizer = byte_level()
    assert tokenizer.encode("ab</s>ab", add_special=False) == [256, 261, 256]
    spelled = tokenizer.encode("ab</s>ab", add_special=False, parse_special=False)
    assert spelled == [256, *b"</s>", 256]
    # Spelled out, it is not the BOS either.
    assert tokenizer.encode("<s>", parse_special=False) == [260, *b"<s>"]


@pytest.mark.parametrize("pre", sorted(PRE_TOKENIZERS))
def test_text_never_spells_a_control_token(pre: str) -> None:
    # One word to every pre-tokenizer, and some take whole words that are pieces.
    tokenizer = byte_level(pre, types={"bos": TokenType.CONTROL, "eos": TokenType.CONTROL})
    ids = tokenizer.encode("bos eos bos", add_special=False, parse_special=False)
    assert not {260, 261} & set(ids)
    assert tokenizer.decode(ids) == "bos eos bos"


def test_user_defined_tokens_count_always() -> None:
    tokenizer = byte_level(
        types={"<s>": TokenType.CONTROL, "</s>": TokenType.CONTROL, "<b>": TokenType.USER_DEFINED}
    )
    assert tokenizer.encode("a<b>a", add_special=False, parse_special=False) == [97, 262, 97]
    assert not tokenizer.is_special(262)
    assert tokenizer.decode([97, 262, 261]) == "a<b>"


def test_an_end_token_is_special_whatever_the_file_calls_it() -> None:
    tokenizer = byte_level(types={"<s>": TokenType.CONTROL, "</s>": TokenType.USER_DEFINED})
    assert tokenizer.encode("</s>", add_special=False) == [261]
    assert 261 not in tokenizer.encode("</s>", parse_special=False)
    assert tokenizer.is_special(261)


def test_tokens_know_their_exact_bytes() -> None:
    tokenizer = byte_level()
    assert [tokenizer.token_bytes(i) for i in range(256)] == [bytes((i,)) for i in range(256)]
    assert tokenizer.token_bytes(259) == b" ab"
    assert tokenizer.token_bytes(261) == b"</s>"
    assert tokenizer.text_bytes(261, skip_special=True) == b""
    assert tokenizer.text_bytes(261, skip_special=False) == b"</s>"
    # An embedding padded beyond the vocabulary has ids that stand for nothing.
    assert tokenizer.token_bytes(262) == b""
    assert tokenizer.vocab_size == 262


def test_pieces_and_ids_name_each_other() -> None:
    tokenizer = byte_level()
    assert tokenizer.id_of("Ġab") == 259
    assert tokenizer.piece(259) == "Ġab"
    assert tokenizer.id_of("nothing") is None
    assert tokenizer.special_pieces() == {"bos_token": "<s>", "eos_token": "</s>"}


@given(st.text())
def test_any_text_comes_back(text: str) -> None:
    ids = BYTE_LEVEL.encode(text, add_special=False, parse_special=False)
    assert BYTE_LEVEL.decode(ids, skip_special=False) == text


def test_a_lone_surrogate_is_the_callers_fault() -> None:
    with pytest.raises(RequestError, match="lone surrogate at character 2"):
        byte_level().encode("ab\ud800")


def test_text_is_composed_for_qwen() -> None:
    assert byte_level("qwen2", add_bos=False).encode("e\u0301") == list("é".encode())
    assert byte_level("gpt-2", add_bos=False).encode("e\u0301") == list("e\u0301".encode())


@given(
    st.text("ab<>", max_size=30),
    st.dictionaries(st.text("ab<>", min_size=1, max_size=4), st.integers(), max_size=6),
)
def test_whole_tokens_are_found_leftmost_longest(text: str, ids: dict[str, int]) -> None:
    expected: list[str | int] = []
    plain, at = "", 0
    while at < len(text):
        found = max((p for p in ids if text.startswith(p, at)), key=len, default=None)
        if found is None:
            plain += text[at]
            at += 1
            continue
        expected += [plain, ids[found]] if plain else [ids[found]]
        plain, at = "", at + len(found)
    expected += [plain] if plain else []
    assert list(SpecialSplitter(ids).split(text)) == expected


def gguf(**changed: object) -> dict[str, object]:
    keys: dict[str, object] = {
        "model": "gpt2",
        "pre": "llama-bpe",
        "tokens": ["a", "b", "ab", "<|begin|>", "<|eot_id|>", "<|end|>"],
        "token_type": [1, 1, 1, 3, 3, 4],
        "merges": ["a b"],
        "bos_token_id": 3,
        "eos_token_id": 5,
        "padding_token_id": 4294967295,
    }
    keys.update(changed)
    keys = {f"tokenizer.ggml.{key}": value for key, value in keys.items() if value is not None}
    return {"general.architecture": "llama", "tokenizer.chat_template": "{{ x }}", **keys}


def test_a_gguf_says_what_the_vocabulary_is() -> None:
    spec = vocab_from_gguf(gguf())
    assert (spec.kind, spec.pre) == (VocabKind.BYTE_LEVEL, "llama-bpe")
    assert (spec.bos_id, spec.eos_id, spec.pad_id) == (3, 5, None)
    assert spec.eos_ids == {4, 5}
    assert spec.add_bos  # the pre-tokenizer's way, as the file does not say
    assert not vocab_from_gguf(gguf(add_bos_token=False)).add_bos
    assert spec.chat_templates == {"default": "{{ x }}"}
    assert Tokenizer(spec).encode("abab") == [3, 2, 2]


def test_harmonys_end_of_message_is_not_the_end_of_the_answer() -> None:
    tokens = ["a", "<|end|>", "<|return|>", "<|call|>"]
    spec = vocab_from_gguf(
        gguf(tokens=tokens, token_type=[1, 3, 3, 3], merges=[], bos_token_id=None, eos_token_id=2)
    )
    assert spec.eos_ids == {2, 3}


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"model": "bert"}, "unknown tokenizer.ggml.model 'bert'; known: gpt2, llama"),
        ({"pre": "nobody"}, "unknown pre-tokenizer 'nobody' .* known: .*smollm"),
    ],
)
def test_what_roost_lacks_is_named(changed: dict[str, object], message: str) -> None:
    with pytest.raises(UnsupportedModel, match=message):
        vocab_from_gguf(gguf(**changed))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"model": None}, "tokenizer.ggml.model is missing"),
        ({"tokens": None}, "tokenizer.ggml.tokens is missing"),
        ({"tokens": [1, 2]}, "tokenizer.ggml.tokens is a list, not a list of strings"),
        ({"token_type": [1]}, "tokenizer.ggml.token_type has 1 entries for 6 tokens"),
        ({"bos_token_id": "a"}, "bos_token_id is a str, not an id"),
        ({"merges": None}, "tokenizer.ggml.merges is missing"),
        ({"add_bos_token": "yes"}, "add_bos_token is a str, not true or false"),
        ({"model": "llama"}, "tokenizer.ggml.scores is missing"),
    ],
)
def test_a_broken_file_is_named_by_its_key(changed: dict[str, object], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        vocab_from_gguf(gguf(**changed))


@pytest.mark.parametrize("merges", [["a z"], ["ab"], ["b a"]])
def test_merges_must_fit_the_pieces(merges: list[str]) -> None:
    with pytest.raises(ModelError, match=r"tokenizer\.ggml\.merges"):
        Tokenizer.from_gguf(gguf(merges=merges))


BYTE_LEVEL = byte_level()


def test_a_long_text_lets_other_threads_run(demo_tokenizer: Tokenizer) -> None:
    text = " so it goes on." * 30_000
    gaps = [0.0]
    is_done = threading.Event()

    def watch() -> None:
        last_s = time.monotonic()
        while not is_done.wait(0.001):
            now_s = time.monotonic()
            gaps.append(now_s - last_s)
            last_s = now_s

    watcher = threading.Thread(target=watch)
    watcher.start()
    began_s = time.monotonic()
    ids = demo_tokenizer.encode(text)
    took_s = time.monotonic() - began_s
    is_done.set()
    watcher.join()
    assert max(gaps) < took_s / 4
    assert ids == demo_tokenizer.encode(" so it goes on.") * 30_000
