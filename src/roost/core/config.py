"""Every setting of roost: one typed, frozen object, and the one way in which it is resolved.

The flags of `roost serve`, the variables `ROOST_…`, the keys of a config file and the table in
docs/configuration.md are all made from the fields in `settings`. A field's setting is its name
without the unit: `drain_timeout_s` is `--drain-timeout`, `ROOST_DRAIN_TIMEOUT` and
`drain_timeout = 30`.
"""

import difflib
import math
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from roost.core.errors import ConfigError
from roost.core.settings import EngineConfig, LogConfig, ModelConfig, ServeConfig, ServerConfig

__all__ = [
    "ENV_CONFIG_FILE",
    "ENV_PREFIX",
    "EngineConfig",
    "Layer",
    "LogConfig",
    "ModelConfig",
    "Resolved",
    "ServeConfig",
    "ServerConfig",
    "Setting",
    "all_settings",
    "env_layer",
    "resolve",
    "shown",
    "value_of",
]

ENV_PREFIX: Final = "ROOST_"
# Variables that are read beside the settings: where the config file is.
ENV_CONFIG_FILE: Final = "ROOST_CONFIG"

_Value = str | int | float | bool | tuple[str, ...] | None


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting, as flags, variables, files and the documentation name it.

    choices is empty where any value of the kind may be given.
    """

    name: str
    part: str
    field: str
    kind: Literal["text", "texts", "integer", "number", "choice"]
    is_optional: bool
    is_secret: bool
    choices: tuple[str, ...]
    default: _Value
    help: str
    type: object

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    @property
    def variable(self) -> str:
        return ENV_PREFIX + self.name.upper()


@dataclass(frozen=True, slots=True)
class Layer:
    """Settings from one place. `source` is how a message names it: `{flag}`, `{variable}` and
    `{name}` are filled in, as in `"{flag}"` or `"roost.toml: {name}"`.
    """

    values: Mapping[str, object]
    source: str


@dataclass(frozen=True, slots=True)
class Resolved:
    """The settings, and for each by name where its value comes from."""

    config: ServeConfig
    reasons: Mapping[str, str]


def all_settings() -> tuple[Setting, ...]:
    """Every setting there is, in the order of the documentation."""
    found: list[Setting] = []
    for part, part_type in typing.get_type_hints(ServeConfig).items():
        hints = typing.get_type_hints(part_type, include_extras=True)
        for field in msgspec.structs.fields(part_type):
            found.append(_setting(part, field.name, hints[field.name], field.default))
    return tuple(found)


def _setting(part: str, field: str, hint: object, default: _Value) -> Setting:
    plain, *metas = typing.get_args(hint)
    notes = [m for m in metas if isinstance(m, Meta)]
    is_optional = isinstance(plain, types.UnionType) or type(None) in typing.get_args(plain)
    if is_optional:
        (plain,) = (t for t in typing.get_args(plain) if t is not type(None))
    if typing.get_origin(plain) is Annotated:
        plain = typing.get_args(plain)[0]
    choices = tuple(typing.get_args(plain)) if typing.get_origin(plain) is Literal else ()
    kinds: dict[object, Literal["text", "texts", "integer", "number"]] = {
        str: "text",
        int: "integer",
        float: "number",
        tuple[str, ...]: "texts",
    }
    return Setting(
        name=field.removesuffix("_s"),
        part=part,
        field=field,
        kind="choice" if choices else kinds[plain],
        is_optional=is_optional,
        is_secret=any((m.extra or {}).get("is_secret", False) for m in notes),
        choices=choices,
        default=default,
        help=" ".join(m.description for m in notes if m.description),
        type=hint,
    )


def resolve(layers: Sequence[Layer]) -> Resolved:
    """One object from several places; an earlier layer wins over a later one.

    A value may be text, as flags and variables give it, or already of its type, as a file or a
    Python caller gives it. None means: not given here. Raises ConfigError, naming the setting,
    the value and where it came from.
    """
    settings = {s.name: s for s in all_settings()}
    for layer in layers:
        for name in layer.values:
            if name not in settings:
                raise ConfigError(_unknown(name, layer, tuple(settings.values())))
    parts: dict[str, dict[str, object]] = {}
    reasons: dict[str, str] = {}
    for setting in settings.values():
        reasons[setting.name] = "default"
        for layer in layers:
            raw = layer.values.get(setting.name)
            if raw is None:
                continue
            source = _fill(layer.source, setting)
            parts.setdefault(setting.part, {})[setting.field] = _parse(setting, raw, source)
            reasons[setting.name] = source
            break
    return Resolved(msgspec.convert(parts, ServeConfig), reasons)


def value_of(config: ServeConfig, setting: Setting) -> _Value:
    """The value of one setting."""
    value: _Value = getattr(getattr(config, setting.part), setting.field)
    return value


def shown(setting: Setting, value: _Value) -> str:
    """A value as people may see it. Secrets are not shown."""
    if value is None or value == ():
        return "–"
    if setting.is_secret:
        return "(set)"
    if isinstance(value, tuple):
        return ", ".join(value)
    return f"{value:g}" if isinstance(value, float) else str(value)


def env_layer(environ: Mapping[str, str]) -> Layer:
    """The `ROOST_…` variables; an empty one counts as not given."""
    values = {
        name.removeprefix(ENV_PREFIX).lower(): text or None
        for name, text in environ.items()
        if name.startswith(ENV_PREFIX) and name != ENV_CONFIG_FILE
    }
    return Layer(values, "{variable}")


def _fill(source: str, setting: Setting) -> str:
    return source.format(flag=setting.flag, variable=setting.variable, name=setting.name)


def _unknown(name: str, layer: Layer, settings: tuple[Setting, ...]) -> str:
    by_name = {s.name: s for s in settings}
    asked = name.replace("-", "_")
    near = difflib.get_close_matches(asked, by_name, n=1, cutoff=0.6)
    shape = layer.source.format(
        flag="--" + name.replace("_", "-"), variable=ENV_PREFIX + name.upper(), name=name
    )
    hint = f"; did you mean {_fill(layer.source, by_name[near[0]])}?" if near else ""
    return f"{shape} is not a setting of roost{hint}"


def _parse(setting: Setting, raw: object, source: str) -> object:
    """`raw` as the type of the setting. Raises ConfigError."""
    value = raw
    if setting.kind == "texts":
        pieces = raw.split(",") if isinstance(raw, str) else raw
        value = [p.strip() if isinstance(p, str) else p for p in _iterable(pieces)]
        if any(p == "" for p in value):
            raise ConfigError(f"{source}: {setting.name} holds an empty entry")
    elif isinstance(raw, bool):  # an int to Python, but nobody means a number by it
        value = str(raw).lower()
    try:
        parsed: object = msgspec.convert(value, setting.type, strict=not isinstance(value, str))
    except msgspec.ValidationError as exc:
        raise ConfigError(_bad_value(setting, raw, source, str(exc))) from None
    if isinstance(parsed, float) and not math.isfinite(parsed):
        raise ConfigError(_bad_value(setting, raw, source, "it is not finite"))
    return parsed


def _iterable(pieces: object) -> Sequence[object]:
    return pieces if isinstance(pieces, (list, tuple)) else (pieces,)


def _bad_value(setting: Setting, raw: object, source: str, why: str) -> str:
    value = "the value given" if setting.is_secret else f"{str(raw)[:60]!r}"
    if setting.choices:
        expected = "one of " + ", ".join(setting.choices)
    else:
        kind = {
            "text": "text",
            "texts": "a list of texts",
            "integer": "an integer",
            "number": "a number",
        }
        expected = kind[setting.kind]
        reason = why.removeprefix("Expected ").split(" - at ")[0]
        if setting.kind == "number" and ("nan" in str(raw) or "finite" in why):
            expected = "a finite number"
        elif ">" in reason or "<" in reason:
            sign_and_limit = reason.split(" ", 1)[1] if " " in reason else reason
            expected = f"{expected} {sign_and_limit}"
    named = (
        source
        if setting.name in source or source in (setting.flag, setting.variable)
        else (f"{source}: {setting.name}")
    )
    return f"{named} must be {expected}, got {value}"
