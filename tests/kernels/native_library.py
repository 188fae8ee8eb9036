"""A pytest plugin: `--native-library=FILE` puts another build of the native library under test.

For the build with emulated AVX-512 (`cmake -S native -B build/emulated -DROOST_EMULATE_AVX512=ON`),
on machines without the instructions: every kernel test then also runs for that instruction set.
    PYTHONPATH=tests/kernels pytest -p native_library --native-library=FILE tests/kernels
"""

import importlib.machinery
import importlib.util
import sys
from pathlib import Path

import pytest

import roost


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--native-library", type=Path, help="use this build of roost._native")


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    path: Path | None = early_config.known_args_namespace.native_library
    if path is None:
        return
    assert "roost._native" not in sys.modules, "the installed library is loaded already"
    loader = importlib.machinery.ExtensionFileLoader("roost._native", str(path))
    spec = importlib.util.spec_from_file_location("roost._native", path, loader=loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    sys.modules["roost._native"] = module
    roost._native = module
