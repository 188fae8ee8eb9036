"""The AVX-512 kernels, judged under emulation: the tests of this folder over another build."""

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build" / "emulated"


@pytest.mark.emulated
@pytest.mark.timeout(1200)
@pytest.mark.skipif(sysconfig.get_platform() != "linux-x86_64", reason="AVX-512 is of x86")
def test_emulated_avx512_passes_the_tests_of_the_kernels() -> None:
    cmake = shutil.which("cmake", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    assert cmake is not None, "cmake is one of the development tools"
    configure = [
        *(cmake, "-S", str(ROOT / "native"), "-B", str(BUILD)),
        *("-DCMAKE_BUILD_TYPE=Release", "-DROOST_EMULATE_AVX512=ON"),
        f"-DPython_EXECUTABLE={sys.executable}",
    ]
    subprocess.run(configure, check=True, capture_output=True)
    subprocess.run([cmake, "--build", str(BUILD), "-j2"], check=True, capture_output=True)
    (library,) = BUILD.glob("_native*.so")
    ran = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-x", "-p", "native_library"),
            *(f"--native-library={library}", "-m", "not emulated", "-k", "avx512 or same"),
            str(Path(__file__).parent),
        ],
        check=False,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parent)},
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stdout[-4000:]
    assert "passed" in ran.stdout
