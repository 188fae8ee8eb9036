"""Ids equal those of the models' original tokenizers, on the whole corpus."""

import json
import time
from collections.abc import Mapping
from pathlib import Path

import pytest
from tokenizers import Regex, pre_tokenizers

from roost.text import Tokenizer
from roost.text.pretokenizers import PRE_TOKENIZERS

GOLDEN = Path(__file__).parents[2] / "golden" / "tokenizer"
SPLITS = sorted(path.stem.removeprefix("pre_") for path in GOLDEN.glob("pre_*.json"))


def cases(name: str) -> dict[str, dict[str, list[int]]]:
    data = json.loads((GOLDEN / f"{name}.json").read_text("utf-8"))
    return {case["name"]: case for case in data["cases"]}


def differences(tokenizer: Tokenizer, name: str, corpus: Mapping[str, str]) -> list[str]:
    expected = cases(name)
    assert expected.keys() == corpus.keys()
    wrong = []
    for case, text in corpus.items():
        plain = tokenizer.encode(text, add_special=False, parse_special=False)
        special = tokenizer.encode(text)
        if plain != expected[case]["plain"] or special != expected[case]["special"]:
            wrong.append(case)
    return wrong


def test_the_demo_models_ids_are_the_originals(
    demo_tokenizer: Tokenizer, corpus: Mapping[str, str]
) -> None:
    assert differences(demo_tokenizer, "smollm2", corpus) == []


def test_gemmas_ids_are_the_originals(
    gemma_tokenizer: Tokenizer, corpus: Mapping[str, str]
) -> None:
    assert differences(gemma_tokenizer, "gemma3", corpus) == []


@pytest.mark.parametrize("pre", SPLITS)
def test_words_are_cut_where_the_original_cuts(pre: str, corpus: Mapping[str, str]) -> None:
    splits = [pre_tokenizers.Split(Regex(s), "isolated") for s in PRE_TOKENIZERS[pre].splits]
    cutter = pre_tokenizers.Sequence(splits)
    expected = cases(f"pre_{pre}")
    ends = {
        case: [span[1] for _, span in cutter.pre_tokenize_str(text)]
        for case, text in corpus.items()
    }
    assert ends == {case: expected[case]["ends"] for case in corpus}


def test_text_comes_back_from_ids(demo_tokenizer: Tokenizer, corpus: Mapping[str, str]) -> None:
    for text in corpus.values():
        ids = demo_tokenizer.encode(text, add_special=False)
        assert demo_tokenizer.decode(ids, skip_special=False) == text


def test_text_comes_back_from_gemmas_ids(
    gemma_tokenizer: Tokenizer, corpus: Mapping[str, str]
) -> None:
    for text in corpus.values():
        ids = gemma_tokenizer.encode(text, add_special=False)
        # SentencePiece has one sign for a space and for U+2581 itself.
        assert gemma_tokenizer.decode(ids, skip_special=False) == text.replace("\u2581", " ")


def test_what_ends_an_answer(demo_tokenizer: Tokenizer, gemma_tokenizer: Tokenizer) -> None:
    assert {demo_tokenizer.piece(i) for i in demo_tokenizer.eos_ids} == {
        "<|endoftext|>",
        "<|im_end|>",
    }
    # `</s>` is strike-through to Gemma, which writes HTML.
    assert {gemma_tokenizer.piece(i) for i in gemma_tokenizer.eos_ids} == {
        "<eos>",
        "<end_of_turn>",
    }


def test_a_quarter_million_pieces_load_in_a_moment(gemma_metadata: Mapping[str, object]) -> None:
    begun_s = time.perf_counter()
    Tokenizer.from_gguf(gemma_metadata)
    # 0.6 s on an idle core; the bound allows for a busy machine.
    assert time.perf_counter() - begun_s < 3.0
