"""Command-line options made from the settings, so that no flag is written down twice."""

import inspect
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, Final

import typer

from roost.core.config import Setting, all_settings, shown

_METAVARS: Final = {"text": "TEXT", "texts": "TEXT", "integer": "INTEGER", "number": "NUMBER"}
_PANELS: Final = {
    "model": "Model",
    "server": "Server",
    "engine": "Engine",
    "log": "Log",
}

Given = Mapping[str, object]


def with_settings(command: Callable[..., None], parts: tuple[str, ...]) -> Callable[..., None]:
    """`command` with an option for each setting of `parts`.

    It gets them as its first argument, a mapping by name of those that were given; its own
    parameters stay.
    """
    settings = [s for s in all_settings() if s.part in parts]
    names = {s.name for s in settings}

    @wraps(command)
    def wrapped(**options: object) -> None:
        own = {name: value for name, value in options.items() if name not in names}
        given = {
            name: ",".join(value) if isinstance(value, list) else value
            for name, value in options.items()
            if name in names and value is not None and value != []
        }
        command(given, **own)

    own_parameters = list(inspect.signature(command).parameters.values())[1:]
    made = [_parameter(s) for s in settings]
    # What typer reads instead of the wrapper's own.
    wrapped.__signature__ = inspect.Signature([*own_parameters, *made])  # type: ignore[attr-defined]
    wrapped.__annotations__ = {p.name: p.annotation for p in (*own_parameters, *made)}
    return wrapped


def _parameter(setting: Setting) -> inspect.Parameter:
    has_default = setting.default not in (None, ())
    default = f" (default: {shown(setting, setting.default)})" if has_default else ""
    # The values stay text here; one place checks them, whatever way they came.
    option: Any = typer.Option(
        None,
        setting.flag,
        metavar="|".join(setting.choices) or _METAVARS[setting.kind],
        help=setting.help + default,
        show_default=False,
        rich_help_panel=_PANELS[setting.part],
    )
    annotation = list[str] | None if setting.kind == "texts" else str | None
    return inspect.Parameter(
        setting.name, inspect.Parameter.KEYWORD_ONLY, default=option, annotation=annotation
    )
