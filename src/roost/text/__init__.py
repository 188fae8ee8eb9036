"""Text ↔ tokens: tokenizers, chat templates, incremental text, stop matching.

Takes vocabularies as plain data (a GGUF's metadata) or a Hugging Face folder; messages; token ids.
Gives ids, prompts, text that never changes once given out, and the byte at which an answer ends.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from roost.text.chat import ChatTemplate, chat_template_for
    from roost.text.detokenize import TextStream
    from roost.text.gguf_vocab import vocab_from_gguf
    from roost.text.hf_vocab import tokenizer_from_folder
    from roost.text.stops import HoldBack, StopMatch, StopMatcher
    from roost.text.token_table import TokenTable
    from roost.text.tokenizer import Tokenizer
    from roost.text.vocab import TokenType, VocabKind, VocabSpec

__all__ = [
    "ChatTemplate",
    "HoldBack",
    "StopMatch",
    "StopMatcher",
    "TextStream",
    "TokenTable",
    "TokenType",
    "Tokenizer",
    "VocabKind",
    "VocabSpec",
    "chat_template_for",
    "tokenizer_from_folder",
    "vocab_from_gguf",
]

# Loaded when first asked for: the engine matches stops and needs no Jinja (0.1 s).
_HOMES: Final = {
    "ChatTemplate": "chat",
    "chat_template_for": "chat",
    "TextStream": "detokenize",
    "vocab_from_gguf": "gguf_vocab",
    "tokenizer_from_folder": "hf_vocab",
    "HoldBack": "stops",
    "StopMatch": "stops",
    "StopMatcher": "stops",
    "TokenTable": "token_table",
    "Tokenizer": "tokenizer",
    "TokenType": "vocab",
    "VocabKind": "vocab",
    "VocabSpec": "vocab",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"roost.text.{_HOMES[name]}"), name)
