"""The thread pool and a whole small program, run under the compiler's sanitizers."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PATH = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
SANITIZERS = ["thread", "address,undefined"]
# A failed check exits with its own status, so that it is told from a failed test of ours.
OPTIONS = {
    "TSAN_OPTIONS": "halt_on_error=1:second_deadlock_stack=1:exitcode=66",
    "ASAN_OPTIONS": "detect_leaks=1:strict_init_order=1:exitcode=66",
    "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1:exitcode=66",
}


def launcher(sanitizer: str, folder: Path) -> list[str] | None:
    """What runs an instrumented program here, or None if nothing does.

    The compiler may come without the runtime; and older thread sanitizers start only where the
    kernel places memory less randomly than most now do, or is told not to by `setarch`.
    """
    program = folder / "probe"
    compiler = os.environ.get("CXX") or shutil.which("c++", path=PATH)
    if compiler is None:
        return None
    compiled = subprocess.run(
        [compiler, f"-fsanitize={sanitizer}", "-x", "c++", "-", "-o", str(program)],
        check=False,
        input=b"int main() {}",
        capture_output=True,
    )
    if compiled.returncode != 0:
        return None
    for command in ([], ["setarch", "--addr-no-randomize"]):
        if command and shutil.which(command[0], path=PATH) is None:
            continue
        if subprocess.run([*command, program], check=False, capture_output=True).returncode == 0:
            return command
    return None


@pytest.mark.timeout(900)
@pytest.mark.parametrize("sanitizer", SANITIZERS)
def test_native_tests_are_clean_under(sanitizer: str, tmp_path: Path) -> None:
    command = launcher(sanitizer, tmp_path)
    if command is None:
        assert "CI" not in os.environ, f"no runtime of -fsanitize={sanitizer}"
        pytest.skip(f"no runtime of -fsanitize={sanitizer} on this machine")
    cmake = shutil.which("cmake", path=PATH)
    assert cmake is not None, "cmake is one of the development tools"
    build = ROOT / "build" / f"test-{sanitizer.partition(',')[0]}"
    configure = [
        *(cmake, "-S", str(ROOT / "native"), "-B", str(build), "-DCMAKE_BUILD_TYPE=Release"),
        # Nothing beside the flags of CMakeLists.txt: -O3 over instrumented code takes minutes.
        *(
            "-DCMAKE_CXX_FLAGS_RELEASE=-DNDEBUG",
            "-DROOST_TESTS=ON",
            f"-DROOST_SANITIZE={sanitizer}",
        ),
    ]
    subprocess.run(configure, check=True, capture_output=True)
    subprocess.run([cmake, "--build", str(build), "-j2"], check=True, capture_output=True)
    ran = subprocess.run(
        [*command, str(build / "roost_tests")],
        check=False,
        env={**os.environ, **OPTIONS},
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, (ran.stdout + ran.stderr)[-6000:]
