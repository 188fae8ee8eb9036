"""The config file: TOML, with the settings' names at its top level."""

import tomllib
from pathlib import Path

from roost.core.config import Layer
from roost.core.errors import ConfigError


def file_layer(path: Path) -> Layer:
    """The settings in a file. Raises ConfigError when it cannot be read or is not TOML."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        reason = exc.strerror if isinstance(exc, OSError) else "it is not UTF-8"
        raise ConfigError(f"the config file {path} cannot be read: {reason}") from None
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as exc:
        raise ConfigError(f"the config file {path} is not TOML: {exc}") from None
    # Braces in a path would be taken for fields of the source's shape.
    name = str(path).replace("{", "{{").replace("}", "}}")
    return Layer(values, name + ": {name}")
