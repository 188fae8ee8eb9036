"""`roost serve --explain`: every setting, its value, and why it has that value."""

from collections.abc import Iterator

from rich.console import Console
from rich.table import Table

from roost.core.config import Resolved, all_settings, shown, value_of


def explain(resolved: Resolved, console: Console | None = None) -> None:
    """Print the table."""
    table = Table(box=None, pad_edge=False)
    for title in ("setting", "value", "why"):
        table.add_column(title, overflow="fold")
    for name, value, why in rows(resolved):
        table.add_row(name, value, why)
    (Console() if console is None else console).print(table)


def rows(resolved: Resolved) -> Iterator[tuple[str, str, str]]:
    """(setting, value, why); what the machine decides is asked of the machine."""
    for setting in all_settings():
        value = value_of(resolved.config, setting)
        why = resolved.reasons[setting.name]
        if setting.name == "threads" and value is None:
            from roost.kernels import usable_cores

            num_threads, reason = usable_cores()
            yield setting.name, str(num_threads), reason
        elif setting.name == "isa" and value is None:
            from roost.kernels import available_isas, choose_isa

            yield setting.name, choose_isa(None), f"best of {', '.join(available_isas())}"
        elif setting.name == "max_total_tokens" and value is None:
            yield setting.name, shown(setting, value), "sized from the free memory at start"
        elif setting.name == "context_length" and value is None:
            yield setting.name, shown(setting, value), "the model's own"
        else:
            yield setting.name, shown(setting, value), why
