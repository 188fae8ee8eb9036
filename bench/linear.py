"""Build native/bench/linear.cpp and run it: the linear kernels beside the machine's own limits.

python -m bench.linear [--isa avx2] [--type 3] [--threads 2]
"""

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build" / "bench"


def main() -> int:
    cmake = shutil.which("cmake")
    if cmake is None:
        print("cmake is needed to build the benchmark", file=sys.stderr)
        return 2
    options = ["-DROOST_BENCH=ON", "-DCMAKE_BUILD_TYPE=Release"]
    for step in (
        [cmake, "-S", str(ROOT / "native"), "-B", str(BUILD), *options],
        [cmake, "--build", str(BUILD), "-j2"],
    ):
        subprocess.run(step, check=True, capture_output=True)
    return subprocess.run([BUILD / "linear_bench", *sys.argv[1:]], check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
