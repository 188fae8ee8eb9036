"""A Hugging Face folder (tokenizer.json and its neighbours) → Tokenizer."""

import json
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Final

import tokenizers

from roost.core.errors import ModelError, UnsupportedModel
from roost.text.byte_level import ids_of
from roost.text.pieces import byte_of_piece
from roost.text.tokenizer import Tokenizer
from roost.text.vocab import TokenType, VocabKind, VocabSpec, end_ids

Json = Mapping[str, object]

_SPACE_STEPS: Final = frozenset({"Metaspace", "ByteFallback"})


def tokenizer_from_folder(folder: Path) -> Tokenizer:
    """Reads tokenizer.json; also, where they are there, tokenizer_config.json,
    generation_config.json and chat_template.jinja.

    Raises ModelError for a file that is missing or broken, UnsupportedModel for a tokenizer whose
    tokens do not map to bytes.
    """
    path = folder / "tokenizer.json"
    text = _text(path)
    encoder = JsonEncoder(text, path)
    config = _read(folder / "tokenizer_config.json")
    generation = _read(folder / "generation_config.json")
    templates = dict(_templates(config))
    template_path = folder / "chat_template.jinja"
    if template_path.is_file():
        templates["default"] = _text(template_path)
    return Tokenizer(_spec(text, path, encoder, (config, generation), templates), encoder)


class JsonEncoder:
    """The `tokenizers` library on a whole tokenizer.json."""

    def __init__(self, text: str, path: Path) -> None:
        self._text = text
        try:
            self._tokenizer = tokenizers.Tokenizer.from_str(text)
        except Exception as exc:  # the library raises nothing narrower
            raise ModelError(f"{path} is not a tokenizer: {exc}") from exc

    @cached_property
    def _literal(self) -> tokenizers.Tokenizer:
        """Another one, to which special tokens are text: the switch is in the object."""
        tokenizer = tokenizers.Tokenizer.from_str(self._text)
        tokenizer.encode_special_tokens = True
        return tokenizer

    def encode(self, text: str, *, parse_special: bool) -> list[int]:
        tokenizer = self._tokenizer if parse_special else self._literal
        return ids_of(tokenizer, text)

    def added_around(self) -> list[int]:
        """The special tokens that the tokenizer's own rules put around a text."""
        return self._tokenizer.encode("", add_special_tokens=True).ids


def _spec(
    text: str, path: Path, encoder: JsonEncoder, configs: tuple[Json, Json], templates: Json
) -> VocabSpec:
    data: Json = json.loads(text)
    ids, types = dict(_model_pieces(data, path)), {}
    for content, token_id, is_special in _added(data):
        ids[content] = token_id
        types[token_id] = TokenType.CONTROL if is_special else TokenType.USER_DEFINED
    pieces = [""] * (max(ids.values(), default=-1) + 1)
    kinds = [int(TokenType.UNUSED)] * len(pieces)
    for piece, token_id in ids.items():
        pieces[token_id] = piece
        plain = TokenType.NORMAL if byte_of_piece(piece) is None else TokenType.BYTE
        kinds[token_id] = types.get(token_id, plain)
    kind, strips_space = _decoding(data, path)
    if kind is VocabKind.BYTE_LEVEL:
        kinds = [TokenType.NORMAL if k == TokenType.BYTE else k for k in kinds]
    config, generation = configs
    special = {n: _special(n, config, ids) for n in ("bos", "eos", "unk", "pad")}
    ends = generation.get("eos_token_id")
    named = [*(ends if isinstance(ends, list) else [ends]), special["eos"]]
    around = encoder.added_around()
    return VocabSpec(
        kind=kind,
        pieces=pieces,
        types=kinds,
        bos_id=special["bos"],
        eos_id=special["eos"],
        unk_id=special["unk"],
        pad_id=special["pad"],
        eos_ids=end_ids(
            pieces, kinds, [i for i in named if isinstance(i, int) and 0 <= i < len(pieces)]
        ),
        add_bos=special["bos"] is not None and _adds_bos(config, around[:1] == [special["bos"]]),
        add_eos=special["eos"] is not None and around[-1:] == [special["eos"]],
        add_space_prefix=strips_space,
        chat_templates={name: str(source) for name, source in templates.items()},
    )


def _model_pieces(data: Json, path: Path) -> Iterator[tuple[str, int]]:
    model = data.get("model")
    vocab = model.get("vocab") if isinstance(model, dict) else None
    if isinstance(vocab, dict):
        yield from vocab.items()
    elif isinstance(vocab, list):  # Unigram: [piece, score], by id
        yield from ((str(entry[0]), token_id) for token_id, entry in enumerate(vocab))
    else:
        raise ModelError(f"{path} has no model.vocab")


def _added(data: Json) -> Iterator[tuple[str, int, bool]]:
    added = data.get("added_tokens")
    for token in added if isinstance(added, list) else ():
        yield token["content"], token["id"], bool(token.get("special"))


def _decoding(data: Json, path: Path) -> tuple[VocabKind, bool]:
    """How pieces become bytes, and whether decoding takes a leading space off."""
    steps = list(_steps(data.get("decoder"))) or list(_steps(data.get("pre_tokenizer")))
    names = [str(step.get("type")) for step in steps]
    if "ByteLevel" in names:
        return VocabKind.BYTE_LEVEL, False
    if _SPACE_STEPS.intersection(names):
        strips = any(
            step.get("type") == "Strip"
            or (step.get("type") == "Metaspace" and step.get("prepend_scheme") != "never")
            for step in steps
        )
        return VocabKind.SENTENCEPIECE, strips
    raise UnsupportedModel(f"{path}: decoder {', '.join(names) or 'none'} is not supported")


def _steps(node: object) -> Iterator[Json]:
    if not isinstance(node, dict):
        return
    inner = node.get("decoders") or node.get("pretokenizers")
    if isinstance(inner, list):
        for step in inner:
            yield from _steps(step)
    else:
        yield node


def _special(name: str, config: Json, ids: Mapping[str, int]) -> int | None:
    value = config.get(f"{name}_token")
    content = value.get("content") if isinstance(value, dict) else value
    return ids.get(content) if isinstance(content, str) else None


def _adds_bos(config: Json, by_rule: bool) -> bool:
    """The flag in tokenizer_config.json outdoes the rules in tokenizer.json, as in transformers."""
    flag = config.get("add_bos_token")
    return flag if isinstance(flag, bool) else by_rule


def _templates(config: Json) -> Iterator[tuple[str, str]]:
    value = config.get("chat_template")
    if isinstance(value, str):
        yield "default", value
    elif isinstance(value, list):
        for entry in value:
            if isinstance(entry, dict):
                yield str(entry.get("name")), str(entry.get("template"))


def _text(path: Path) -> str:
    """All of a file. Raises ModelError where it is missing, not readable or no UTF-8."""
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        reason = exc.strerror if isinstance(exc, OSError) else "it is not UTF-8"
        raise ModelError(f"{path}: cannot be read: {reason}") from exc


def _read(path: Path) -> Json:
    """The object in a JSON file; empty if there is no such file."""
    if not path.exists():
        return {}
    try:
        data = json.loads(_text(path))
    except (ValueError, RecursionError) as exc:
        raise ModelError(f"{path}: cannot be read: {exc}") from exc
    if not isinstance(data, dict):
        raise ModelError(f"{path} does not hold an object")
    return data
