import json
from pathlib import Path

import pytest
from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

from roost.core.errors import ModelError, UnsupportedModel
from roost.text import tokenizer_from_folder

TEXT = ["the birds came home before dark", "nobody had to call them twice: 12, 144"]


def save(folder: Path, tokenizer: Tokenizer, **config: object) -> None:
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


@pytest.fixture
def byte_level() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<s>", "</s>", "<|im_end|>"],
    )
    tokenizer.train_from_iterator(TEXT, trainer)
    tokenizer.add_tokens([AddedToken("<think>", special=False)])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 0)]
    )
    return tokenizer


def test_ids_are_the_librarys(tmp_path: Path, byte_level: Tokenizer) -> None:
    save(tmp_path, byte_level, bos_token="<s>", eos_token={"content": "</s>"})
    ours = tokenizer_from_folder(tmp_path)
    for text in [*TEXT, "", " <think>é</s>", "<s>the"]:
        assert (
            ours.encode(text, add_special=False)
            == byte_level.encode(text, add_special_tokens=False).ids
        )
    assert ours.encode("the") == byte_level.encode("the").ids
    assert ours.encode("<s>the") == byte_level.encode("the").ids
    assert ours.vocab_size == byte_level.get_vocab_size()


def test_special_tokens_can_be_text(tmp_path: Path, byte_level: Tokenizer) -> None:
    save(tmp_path, byte_level, bos_token="<s>", eos_token="</s>")
    ours = tokenizer_from_folder(tmp_path)
    ids = ours.encode("a</s><think>", add_special=False, parse_special=False)
    assert ours.eos_id not in ids
    assert ours.id_of("<think>") in ids
    assert ours.decode(ids) == "a</s><think>"


def test_the_folder_says_what_ends_an_answer(tmp_path: Path, byte_level: Tokenizer) -> None:
    save(tmp_path, byte_level, eos_token="</s>", chat_template="{{ 1 }}")
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [1, 40]}')
    ours = tokenizer_from_folder(tmp_path)
    assert ours.eos_ids == {1, 2, 40}
    assert (ours.bos_id, ours.add_bos) == (None, False)
    assert ours.is_special(2)
    assert not ours.is_special(5)
    assert ours.chat_templates == {"default": "{{ 1 }}"}
    (tmp_path / "chat_template.jinja").write_text("{{ 2 }}")
    assert tokenizer_from_folder(tmp_path).chat_templates == {"default": "{{ 2 }}"}


def test_the_config_decides_about_bos(tmp_path: Path, byte_level: Tokenizer) -> None:
    save(tmp_path, byte_level, bos_token="<s>", add_bos_token=False)
    assert not tokenizer_from_folder(tmp_path).add_bos
    byte_level.post_processor = processors.ByteLevel()
    save(tmp_path, byte_level, bos_token="<s>", add_bos_token=True)
    assert tokenizer_from_folder(tmp_path).encode("")[:1] == [0]


def test_named_templates_are_read(tmp_path: Path, byte_level: Tokenizer) -> None:
    named = [{"name": "default", "template": "a"}, {"name": "tool_use", "template": "b"}]
    save(tmp_path, byte_level, chat_template=named)
    assert tokenizer_from_folder(tmp_path).chat_templates == {"default": "a", "tool_use": "b"}


def test_sentencepiece_folders_give_bytes(tmp_path: Path) -> None:
    pieces = ["<unk>", *[f"<0x{b:02X}>" for b in range(256)], "\u2581", "a", "\u2581a"]
    theirs = Tokenizer(
        models.BPE(
            vocab={p: i for i, p in enumerate(pieces)},
            merges=[("\u2581", "a")],
            byte_fallback=True,
            unk_token="<unk>",
        )
    )
    theirs.normalizer = normalizers.Sequence(
        [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
    )
    theirs.decoder = decoders.Sequence(
        [
            decoders.Replace("\u2581", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    save(tmp_path, theirs)
    ours = tokenizer_from_folder(tmp_path)
    ids = ours.encode("a aé")
    assert ids == theirs.encode("a aé").ids
    assert b"".join(map(ours.token_bytes, ids)) == " a aé".encode()
    assert ours.decode(ids) == theirs.decode(ids) == "a aé"


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("chat_template.jinja", b"\xff", "it is not UTF-8"),
        ("tokenizer_config.json", b"\xff", "it is not UTF-8"),
        ("tokenizer_config.json", b"[" * 100_000, "recursion"),
        ("generation_config.json", b"{", "Expecting property name"),
    ],
)
def test_a_broken_file_beside_the_tokenizer_is_named(
    tmp_path: Path, byte_level: Tokenizer, name: str, data: bytes, message: str
) -> None:
    save(tmp_path, byte_level)
    (tmp_path / name).write_bytes(data)
    with pytest.raises(ModelError, match=rf"{name}: cannot be read: .*{message}"):
        tokenizer_from_folder(tmp_path)


def test_what_is_broken_or_unknown_is_named(tmp_path: Path) -> None:
    with pytest.raises(
        ModelError, match=r"tokenizer\.json: cannot be read: No such file or directory"
    ):
        tokenizer_from_folder(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(ModelError, match="is not a tokenizer"):
        tokenizer_from_folder(tmp_path)
    words = Tokenizer(models.WordPiece(vocab={"a": 0, "[UNK]": 1}, unk_token="[UNK]"))
    words.decoder = decoders.WordPiece()
    save(tmp_path, words)
    with pytest.raises(UnsupportedModel, match="decoder WordPiece is not supported"):
        tokenizer_from_folder(tmp_path)
