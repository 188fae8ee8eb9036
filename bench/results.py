"""A run's record: a dated JSON file, and its plots, under bench/results.

The record names the machine by what matters for speed (processor, cores, instruction set,
versions); no host, no user, no path.
"""

import datetime as dt
import importlib.metadata
import json
import os
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from bench import plots
from bench.limits import Machine
from bench.report import OURS, ROWS, Sample, median, ratio_of
from bench.traffic import Traffic

FOLDER = Path(__file__).resolve().parent / "results"
# Of the `single` scenario: 128 prompt tokens, and half of the 128 new ones.
_MEAN_CONTEXT = 192


@dataclass(frozen=True)
class Run:
    """What was measured. traffic is None for a model that is no GGUF file."""

    model: str
    peers: tuple[str, ...]
    samples: tuple[Sample, ...]
    machine: Machine | None
    traffic: Traffic | None


def processor() -> dict[str, object]:
    """Model, usable cores, and the flags that kernels care for."""
    fields: dict[str, str] = {}
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        name, _, value = line.partition(":")
        fields[name.strip()] = value.strip()
    flags = set(fields.get("flags", "").split())
    named = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_int8")
    return {
        "processor": fields.get("model name", platform.machine()),
        "family": f"{fields.get('cpu family', '?')}/{fields.get('model', '?')}",
        "usable_cores": len(os.sched_getaffinity(0)),
        "flags": [flag for flag in named if flag in flags],
    }


def shares(run: Run) -> list[str]:
    """How near roost comes to the limits of this machine, measured in the same run."""
    if run.machine is None or run.traffic is None:
        return []
    limit, traffic = run.machine.all_threads, run.traffic
    lines = []
    if single := median(run.samples, OURS, "single"):
        nbytes = traffic.decode_bytes(_MEAN_CONTEXT)
        lines.append(
            f"one stream: {nbytes / 1e6:.1f} MB a token (weights {traffic.weight_bytes / 1e6:.1f},"
            f" KV of {_MEAN_CONTEXT} tokens {_MEAN_CONTEXT * traffic.kv_bytes_per_token / 1e6:.1f})"
            f" x {single:.0f}/s = {nbytes * single / 1e9:.1f} GB/s,"
            f" {nbytes * single / 1e9 / limit.dram_gb_s:.0%} of what DRAM gives"
        )
    for row in ("prefill512", "prefill2048"):
        speed = median(run.samples, OURS, row)
        if speed and limit.int8_gmac_s:
            gmac_s = traffic.layer_macs * speed / 1e9
            lines.append(
                f"{row}: linear layers {traffic.layer_macs / 1e6:.1f} M multiply-adds a token"
                f" x {speed:,.0f}/s = {gmac_s:.0f} GMAC/s,"
                f" {gmac_s / limit.int8_gmac_s:.0%} of the int8 limit (attention included in the"
                " time, not in the count)"
            )
    if memory := median(run.samples, OURS, "memory"):
        lines.append(
            f"memory: {memory:.0f} MB when started, {memory * 1e6 / traffic.file_bytes:.2f} x the"
            f" file's {traffic.file_bytes / 1e6:.0f} MB; a token in the cache takes"
            f" {traffic.kv_bytes_per_token / 1e3:.1f} kB"
        )
    return lines


def write(run: Run, folder: Path) -> list[Path]:
    """The record and its plots, named for the day and the model → the files."""
    folder.mkdir(parents=True, exist_ok=True)
    now = dt.datetime.now(dt.UTC)
    stem = f"{now:%Y-%m-%d-%H%M}-{run.model}"
    ratios = {row.key: ratio_of(run.samples, row, run.peers) for row in ROWS}
    record = {
        "date": f"{now:%Y-%m-%dT%H:%MZ}",
        "roost": importlib.metadata.version("roost"),
        "python": platform.python_version(),
        "kernel": platform.release().split("-", 1)[0],
        **processor(),
        "model": run.model,
        "peers": list(run.peers),
        "limits": asdict(run.machine) if run.machine else None,
        "traffic": asdict(run.traffic) if run.traffic else None,
        "shares": shares(run),
        "ratios": {key: asdict(ratio) for key, ratio in ratios.items() if ratio},
        "medians": {
            label: {
                row.key: value
                for row in ROWS
                if (value := median(run.samples, label, row.key)) is not None
            }
            for label in (OURS, *run.peers)
        },
        "samples": [asdict(sample) for sample in run.samples],
    }
    made = {f"{stem}.json": json.dumps(record, indent=1) + "\n"}
    bars = _bars(run)
    if bars:
        made[f"{stem}-ratios.svg"] = plots.bars(f"roost over the best peer, {run.model}", bars)
    if run.machine and run.machine.all_threads.int8_gmac_s:
        made[f"{stem}-roofline.svg"] = plots.roofline(run.machine)
    for name, text in made.items():
        (folder / name).write_text(text)
    return [folder / name for name in made]


def _bars(run: Run) -> Sequence[plots.Bar]:
    found = []
    group = ""
    for row in ROWS:
        is_part = row.title.startswith(" ")
        title = row.title.strip()
        if not is_part:
            group = title.split(",", 1)[0]
        if ratio := ratio_of(run.samples, row, run.peers):
            name = f"{group}: {title}" if is_part else title
            found.append(plots.Bar(name, ratio.median, ratio.least, ratio.most, ratio.peer))
    return found
