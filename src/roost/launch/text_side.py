"""A model's text side from its files: for the processes that do not load its weights."""

from pathlib import Path

from roost.core.config import ModelConfig
from roost.core.errors import ConfigError
from roost.frontend import TextTools
from roost.launch.heap import without_collection
from roost.text import ChatTemplate, Tokenizer, chat_template_for, tokenizer_from_folder
from roost.weights import open_model, resolve_model


def text_tools(config: ModelConfig) -> TextTools:
    """Tokenizer and chat template. Raises ModelError, or ConfigError for a bad template file."""
    with without_collection():
        return _text_tools(config)


def _text_tools(config: ModelConfig) -> TextTools:
    files = open_model(resolve_model(config.model))
    if files.container == "gguf":
        tokenizer = Tokenizer.from_gguf(files.metadata)
    else:
        tokenizer = tokenizer_from_folder(files.path)
    if config.chat_template is None:
        return TextTools(tokenizer, chat_template_for(tokenizer))
    return TextTools(tokenizer, _template_of_file(config.chat_template, tokenizer))


def _template_of_file(name: str, tokenizer: Tokenizer) -> ChatTemplate:
    try:
        source = Path(name).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        reason = exc.strerror if isinstance(exc, OSError) else "it is not UTF-8"
        raise ConfigError(f"chat_template: {name} cannot be read: {reason}") from None
    return ChatTemplate(source, tokenizer.special_pieces())
