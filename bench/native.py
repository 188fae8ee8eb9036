"""The programs of native/bench, built under build/bench when they are asked for."""

import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
_BUILD = ROOT / "build" / "bench"


class BuildFailed(Exception):
    """A program of native/bench could not be built; the message says why."""


def built(name: str) -> Path:
    """`native/bench/NAME.cpp` as a program. Raises BuildFailed."""
    cmake = shutil.which("cmake", path=f"{ROOT / '.venv' / 'bin'}:/usr/local/bin:/usr/bin:/bin")
    if cmake is None:
        raise BuildFailed("cmake is needed to build the native benchmarks")
    options = ["-DROOST_BENCH=ON", "-DCMAKE_BUILD_TYPE=Release"]
    for step in (
        [cmake, "-S", str(ROOT / "native"), "-B", str(_BUILD), *options],
        [cmake, "--build", str(_BUILD), "-j2", "--target", f"{name}_bench"],
    ):
        made = subprocess.run(step, check=False, capture_output=True, text=True)
        if made.returncode:
            raise BuildFailed((made.stdout + made.stderr)[-2_000:])
    return _BUILD / f"{name}_bench"
