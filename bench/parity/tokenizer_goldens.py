"""Write the tokenizer goldens: what the original tokenizers make of `corpus.json`.

    python -m bench.parity.tokenizer_goldens --smollm2 M.gguf --gemma3 M.gguf

Sources of truth, none of them ours:

- SmolLM2: the `tokenizers` library, set up as the model's own `tokenizer.json` sets it up (single
  digits, then the GPT-2 pattern on bytes), over the vocabulary and merges that the GGUF carries.
- Gemma 3: the `sentencepiece` library, on a model file rebuilt from the GGUF's pieces, scores and
  types. (SentencePiece knows no way to ask for a control token inside text, so `special` cuts the
  text at them first.)
- Both are compared with llama.cpp (`llama-cpp-python`); where it differs, its ids are kept beside
  them as `llama_cpp`.
- Pre-tokenizers: the `Split` patterns which the `tokenizer.json` of each family states, run by
  the `tokenizers` library; recorded are the end offsets of the pieces, in characters.

Each case holds `plain` (no special tokens added, none parsed inside the text) and `special` (both).
"""

import argparse
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from bench.parity.llama_peer import LlamaVocab
from gguf import GGUFReader
from sentencepiece import SentencePieceProcessor
from sentencepiece.sentencepiece_model_pb2 import ModelProto
from tokenizers import AddedToken, Regex, Tokenizer, models, pre_tokenizers

_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED, _BYTE = 1, 2, 3, 4, 5, 6

_CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORDS_OF_CASE = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+%s"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*%s"
)
_BLANKS = r"\s*[\r\n]+|\s+(?!\S)|\s+"

# The GGUF name of a pre-tokenizer → the patterns of its Split steps, in order ("isolated").
# Facts, from the tokenizer.json of the families named.
PRE_TOKENIZERS: dict[str, tuple[str, ...]] = {
    "gpt-2": (r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",),
    "smollm": (
        r"\p{N}",
        r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    ),
    "llama-bpe": (
        _CONTRACTIONS
        + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|"
        + _BLANKS,
    ),
    "qwen2": (
        _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + _BLANKS,
    ),
    "tekken": (_WORDS_OF_CASE % ("", "") + r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|" + _BLANKS,),
    "gpt-4o": (
        _WORDS_OF_CASE % (_CONTRACTIONS + "?", _CONTRACTIONS + "?")
        + r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|"
        + _BLANKS,
    ),
    "deepseek-v3": (
        r"\p{N}{1,3}",
        "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
        r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
        r"| ?[\p{P}\p{S}]+[\r\n]*|" + _BLANKS,
    ),
}

Encode = Callable[[str], list[int]]


@dataclass(frozen=True)
class Vocab:
    """The vocabulary of a GGUF file, as plain lists."""

    pieces: list[str]
    types: list[int]
    scores: list[float]
    merges: list[str]
    bos_id: int
    unknown_id: int
    add_bos: bool


def read_vocab(path: Path) -> Vocab:
    """Read the `tokenizer.ggml.*` keys of `path`."""
    fields = GGUFReader(path).fields

    def value(key: str, default: object) -> object:
        field = fields.get(f"tokenizer.ggml.{key}")
        return default if field is None else field.contents()

    def strings(key: str) -> list[str]:
        field = fields.get(f"tokenizer.ggml.{key}")
        return [] if field is None else [bytes(field.parts[i]).decode() for i in field.data]

    types = value("token_type", [])
    scores = value("scores", [])
    bos_id = value("bos_token_id", -1)
    assert isinstance(types, list)
    assert isinstance(scores, list)
    unknown_id = value("unknown_token_id", -1)
    assert isinstance(bos_id, int)
    assert isinstance(unknown_id, int)
    return Vocab(
        pieces=strings("tokens"),
        types=types,
        scores=scores,
        merges=strings("merges"),
        bos_id=bos_id,
        unknown_id=unknown_id,
        add_bos=bool(value("add_bos_token", False)),
    )


def smollm2_encoders(vocab: Vocab) -> tuple[Encode, Encode]:
    """SmolLM2's tokenizer in the `tokenizers` library: (plain, special)."""
    ids = {piece: index for index, piece in enumerate(vocab.pieces)}
    merges = [(left, right) for left, right in (merge.split(" ") for merge in vocab.merges)]
    tokenizer = Tokenizer(models.BPE(vocab=ids, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    tokenizer.add_special_tokens(
        [
            AddedToken(piece, special=True, normalized=False)
            for piece, kind in zip(vocab.pieces, vocab.types, strict=True)
            if kind == _CONTROL
        ]
    )

    def encode(text: str, *, parse: bool) -> list[int]:
        tokenizer.encode_special_tokens = not parse
        found: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
        return found

    return (lambda text: encode(text, parse=False)), (lambda text: encode(text, parse=True))


def gemma3_encoders(vocab: Vocab) -> tuple[Encode, Encode]:
    """Gemma 3's tokenizer in the `sentencepiece` library: (plain, special)."""
    proto = ModelProto()
    for index, (piece, score) in enumerate(zip(vocab.pieces, vocab.scores, strict=True)):
        kind = _UNKNOWN if index == vocab.unknown_id else vocab.types[index]
        # GGUF converters write user-defined pieces with real spaces; SentencePiece keeps U+2581.
        written = piece.replace(" ", "\u2581") if kind == _USER_DEFINED else piece
        proto.pieces.add(piece=written, type=kind, score=score)
    proto.trainer_spec.model_type = 2  # BPE
    proto.trainer_spec.byte_fallback = True
    proto.trainer_spec.vocab_size = len(vocab.pieces)
    proto.trainer_spec.unk_id = vocab.unknown_id
    proto.trainer_spec.bos_id = vocab.bos_id
    proto.normalizer_spec.name = "identity"
    proto.normalizer_spec.add_dummy_prefix = False
    proto.normalizer_spec.remove_extra_whitespaces = False
    proto.normalizer_spec.escape_whitespaces = True
    processor = SentencePieceProcessor(model_proto=proto.SerializeToString())

    def plain(text: str) -> list[int]:
        found: list[int] = processor.EncodeAsIds(text)
        return found

    control = {
        piece: index
        for index, piece in enumerate(vocab.pieces)
        if vocab.types[index] in (_CONTROL, _UNKNOWN)
    }
    longest_first = sorted(control, key=len, reverse=True)
    cut = re.compile("(" + "|".join(map(re.escape, longest_first)) + ")")

    def special(text: str) -> list[int]:
        found = [vocab.bos_id] if vocab.add_bos and not text.startswith("<bos>") else []
        for part in cut.split(text):
            found += [control[part]] if part in control else plain(part)
        return found

    return plain, special


def cases(
    corpus: list[dict[str, str]], encoders: tuple[Encode, Encode], peer: LlamaVocab
) -> Iterator[str]:
    """One line of JSON for each text of the corpus."""
    plain, special = encoders
    for entry in corpus:
        name, text = entry["name"], entry["text"]
        case: dict[str, object] = {"name": name, "plain": plain(text), "special": special(text)}
        theirs = {
            "plain": peer.encode(text, add_special=False, parse_special=False),
            "special": peer.encode(text, add_special=True, parse_special=True),
        }
        differing = {key: ids for key, ids in theirs.items() if ids != case[key]}
        if differing:
            case["llama_cpp"] = differing
            print(f"  llama.cpp differs on {name}: {', '.join(differing)}")
        yield json.dumps(case, separators=(",", ":"))


def write_lines(path: Path, head: dict[str, object], lines: list[str]) -> None:
    """Write `head` and a list `cases`, one case a line, so that a diff shows the case."""
    opening = json.dumps(head, indent=1)[:-2]
    path.write_text(opening + ',\n "cases": [\n' + ",\n".join(lines) + "\n ]\n}\n")
    print(f"{path}: {len(lines)} cases, {path.stat().st_size} bytes")


def pre_tokenizer_cases(corpus: list[dict[str, str]], patterns: tuple[str, ...]) -> Iterator[str]:
    """The end offsets (in characters) of each text's pieces."""
    steps = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in patterns]
    )
    for entry in corpus:
        ends = [span[1] for _, span in steps.pre_tokenize_str(entry["text"])]
        yield json.dumps({"name": entry["name"], "ends": ends}, separators=(",", ":"))


def main() -> None:
    parser = argparse.ArgumentParser(description="Write the tokenizer goldens.")
    parser.add_argument("--smollm2", type=Path, required=True)
    parser.add_argument("--gemma3", type=Path)
    parser.add_argument("--out", type=Path, default=Path("tests/golden/tokenizer"))
    options = parser.parse_args()
    corpus: list[dict[str, str]] = json.loads((options.out / "corpus.json").read_text())
    for name, patterns in PRE_TOKENIZERS.items():
        head: dict[str, object] = {"pre": name, "patterns": list(patterns)}
        write_lines(
            options.out / f"pre_{name}.json", head, list(pre_tokenizer_cases(corpus, patterns))
        )
    smollm2 = read_vocab(options.smollm2)
    with LlamaVocab(options.smollm2) as peer:
        write_lines(
            options.out / "smollm2.json",
            {"source": "tokenizers, as the model's tokenizer.json; checked against llama.cpp"},
            list(cases(corpus, smollm2_encoders(smollm2), peer)),
        )
    if options.gemma3 is not None:
        gemma3 = read_vocab(options.gemma3)
        with LlamaVocab(options.gemma3) as peer:
            write_lines(
                options.out / "gemma3.json",
                {"source": "sentencepiece on the GGUF's pieces; checked against llama.cpp"},
                list(cases(corpus, gemma3_encoders(gemma3), peer)),
            )


if __name__ == "__main__":
    main()
