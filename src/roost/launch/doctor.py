"""`roost doctor`: is this machine, with these settings, fit to serve this model?"""

import contextlib
import os
import socket
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from rich.console import Console

from roost.core.config import ServeConfig
from roost.core.errors import ModelError, RoostError

Verdict = Literal["ok", "warning", "failure"]
_MARKS: Final = {
    "ok": "[green]✓[/green]",
    "warning": "[yellow]![/yellow]",
    "failure": "[red]✗[/red]",
}
_GIB: Final = 1 << 30


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check found."""

    what: str
    verdict: Verdict
    detail: str


def doctor(config: ServeConfig, console: Console | None = None) -> int:
    """Print what every check found. The exit code: 0 when none failed, else 1."""
    out = Console(highlight=False) if console is None else console
    found = examine(config)
    for finding in found:
        out.print(f"{_MARKS[finding.verdict]} [bold]{finding.what}[/bold]", end="  ")
        out.print(finding.detail, markup=False, soft_wrap=True)
    return 1 if any(f.verdict == "failure" for f in found) else 0


def examine(config: ServeConfig) -> list[Finding]:
    """Every check, in order; one that fails does not stop the others."""
    checks: tuple[tuple[str, Callable[[ServeConfig], Finding]], ...] = (
        ("python", _python),
        ("native library", _native),
        ("cores", _cores),
        ("memory", _memory),
        ("model", _model),
        ("cache folder", _cache_folder),
        ("port", _port),
    )
    found = []
    for what, check in checks:
        try:
            found.append(check(config))
        except (RoostError, OSError, ImportError) as error:
            found.append(Finding(what, "failure", str(error)))
    return found


def _python(config: ServeConfig) -> Finding:
    del config
    version = ".".join(str(part) for part in sys.version_info[:3])
    return Finding("python", "ok", f"{version} on {sys.platform}")


def _native(config: ServeConfig) -> Finding:
    from roost.kernels import available_isas, choose_isa

    chosen = choose_isa(config.engine.isa)
    has_vectors = chosen != "portable"
    detail = f"{chosen} (this machine runs {', '.join(available_isas())})"
    return Finding("native library", "ok" if has_vectors else "warning", detail)


def _cores(config: ServeConfig) -> Finding:
    from roost.kernels import usable_cores

    num_cores, reason = usable_cores()
    asked = config.engine.threads
    if asked is not None and asked > num_cores:
        return Finding("cores", "warning", f"threads={asked}, but {num_cores} usable: {reason}")
    return Finding("cores", "ok", f"{num_cores} usable: {reason}")


def _memory(config: ServeConfig) -> Finding:
    from roost.weights import open_model, resolve_model
    from roost.worker import free_memory

    free = free_memory()
    detail = f"{free.num_bytes / _GIB:.1f} GiB free: {free.why}"
    if Path(config.model.model).exists() or config.model.model == "demo":
        num_bytes = 0
        with contextlib.suppress(ModelError):  # the check of the model names it
            num_bytes = open_model(resolve_model(config.model.model)).nbytes
        if num_bytes > free.num_bytes:
            need = f"the model's weights take {num_bytes / _GIB:.1f} GiB"
            return Finding("memory", "failure", f"{detail}; {need}")
    return Finding("memory", "ok", detail)


def _model(config: ServeConfig) -> Finding:
    """Looked at, not loaded, and not fetched from the hub."""
    from roost.models import outline_model
    from roost.weights import open_model, resolve_model

    model = config.model.model
    if model != "demo" and not Path(model).expanduser().exists() and "/" in model:
        return Finding("model", "warning", f"{model} is not on this machine yet")
    files = open_model(resolve_model(model))
    detail = f"{files.name}: {files.architecture}, {files.nbytes / _GIB:.2f} GiB"
    outline_model(files)  # raises for an architecture that is not known
    return Finding("model", "ok", detail)


def _cache_folder(config: ServeConfig) -> Finding:
    if config.model.cache_dir is None:
        return Finding("cache folder", "warning", "none: every start packs the weights again")
    folder = Path(config.model.cache_dir)
    # The nearest that exists is where the first start would make it.
    there = next(p for p in (folder, *folder.parents) if p.exists())
    try:
        with tempfile.TemporaryFile(dir=there):
            pass
    except OSError as error:
        why = os.strerror(error.errno or 0)
        detail = f"{folder} cannot be written ({why}): every start packs the weights again"
        return Finding("cache folder", "warning", detail)
    return Finding("cache folder", "ok", str(folder))


def _port(config: ServeConfig) -> Finding:
    host, port = config.server.host, config.server.port
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            return Finding("port", "failure", f"{host}:{port}: {error.strerror}")
    return Finding("port", "ok", f"{host}:{port} is free")
