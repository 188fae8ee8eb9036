"""Hyperparameters out of a mapping that came from a file: typed, checked, with the file's name."""

from collections.abc import Mapping
from math import isfinite
from pathlib import Path

from roost.core.errors import ModelError, UnsupportedModel


class Fields:
    """A view of a mapping. `prefix` goes before every key (a GGUF file's architecture).

    A reader raises ModelError when the key is missing and there is no default, or when the value
    is not of the kind asked for. JSON's null counts as missing.
    """

    def __init__(self, path: Path, mapping: Mapping[str, object], prefix: str = "") -> None:
        self._path = path
        self._mapping = mapping
        self._prefix = prefix

    def has(self, key: str) -> bool:
        return self._mapping.get(self._prefix + key) is not None

    def count(self, key: str, default: int | None = None) -> int:
        """A whole number from 1 on. A list of equal ones (one a layer) counts as that one."""
        value = self._value(key, default)
        if isinstance(value, list) and value and all(item == value[0] for item in value):
            value = value[0]
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise self._error(key, value, "a whole number from 1 on")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """A finite number above 0."""
        value = self._value(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self._error(key, value, "a number")
        if not isfinite(value) or value <= 0:
            raise self._error(key, value, "a finite number above 0")
        return float(value)

    def text(self, key: str, default: str | None = None) -> str:
        value = self._value(key, default)
        if not isinstance(value, str):
            raise self._error(key, value, "a text")
        return value

    def truth(self, key: str, default: bool | None = None) -> bool:
        value = self._value(key, default)
        if not isinstance(value, bool):
            raise self._error(key, value, "true or false")
        return value

    def texts(self, key: str) -> tuple[str, ...]:
        value = self._value(key, None)
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self._error(key, value, "a list of texts")
        return tuple(str(item) for item in value)

    def only(self, key: str, value: str | bool | None) -> None:
        """Raise UnsupportedModel unless the key is missing or has the one value that is built."""
        found = self._mapping.get(self._prefix + key)
        if found is not None and found != value:
            raise UnsupportedModel(
                f"{self._path}: {self._prefix}{key} is {found!r}; only {value!r} is supported",
            )

    def part(self, key: str) -> "Fields | None":
        """A mapping within, or None when it is missing."""
        value = self._mapping.get(self._prefix + key)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self._error(key, value, "a mapping")
        return Fields(self._path, value)

    def error(self, message: str) -> ModelError:
        return ModelError(f"{self._path}: {message}")

    def _value(self, key: str, default: object) -> object:
        value = self._mapping.get(self._prefix + key)
        if value is None:
            value = default
        if value is None:
            raise ModelError(f"{self._path}: the hyperparameter {self._prefix}{key} is missing")
        return value

    def _error(self, key: str, value: object, wanted: str) -> ModelError:
        shown = repr(value)
        shown = shown if len(shown) <= 80 else shown[:79] + "…"
        return ModelError(f"{self._path}: {self._prefix}{key} is {shown}, not {wanted}")
