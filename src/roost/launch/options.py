"""Command-line options made from the settings, so that no flag is written down twice."""

from collections.abc import Callable, Mapping
from functools import wraps
from typing import Final

import click

from roost.core.config import Setting, all_settings, shown

_METAVARS: Final = {"text": "TEXT", "texts": "TEXT", "integer": "INTEGER", "number": "NUMBER"}
_PANELS: Final = {
    "model": "Model",
    "server": "Server",
    "engine": "Engine",
    "log": "Log",
}

Given = Mapping[str, object]


class SettingsCommand(click.Command):
    """A command whose help lists the settings by their parts, after its own options."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        panels: dict[str, list[tuple[str, str]]] = {"Options": []}
        parts = {setting.flag: setting.part for setting in all_settings()}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            # An argument is explained in the command's own words.
            if isinstance(parameter, click.Option) and record is not None:
                part = parts.get(parameter.opts[0], "")
                panels.setdefault(_PANELS.get(part, "Options"), []).append(record)
        for title, records in panels.items():
            with formatter.section(title):
                formatter.write_dl(records)


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
            name: ",".join(value) if isinstance(value, tuple) else value
            for name, value in options.items()
            if name in names and value not in (None, ())
        }
        command(given, **own)

    made: Callable[..., None] = wrapped
    for setting in reversed(settings):
        made = _option(setting)(made)
    return made


def _option(setting: Setting) -> Callable[[Callable[..., None]], Callable[..., None]]:
    has_default = setting.default not in (None, ())
    default = f" (default: {shown(setting, setting.default)})" if has_default else ""
    # The values stay text here; one place checks them, whatever way they came.
    return click.option(
        setting.flag,
        setting.name,
        type=str,
        multiple=setting.kind == "texts",
        metavar="|".join(setting.choices) or _METAVARS[setting.kind],
        help=setting.help + default,
    )
