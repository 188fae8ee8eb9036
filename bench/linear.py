"""Build native/bench/linear.cpp and run it: the linear kernels beside the machine's own limits.

python -m bench.linear [--isa avx2] [--type 3] [--threads 2]
"""

import subprocess
import sys

from bench.native import BuildFailed, built


def main() -> int:
    try:
        program = built("linear")
    except BuildFailed as error:
        print(error, file=sys.stderr)
        return 2
    return subprocess.run([program, *sys.argv[1:]], check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
