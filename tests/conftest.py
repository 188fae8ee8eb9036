"""What many rooms' tests stand on: the demo model, and a server of real processes."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e.serving import Served, serving

from roost.weights import resolve_model


@pytest.fixture(scope="session")
def demo_model() -> Path:
    """The demo model's file; `make test` installs the package that it comes with."""
    return resolve_model("demo")


@pytest.fixture(scope="session")
def server(demo_model: Path) -> Iterator[Served]:
    """One server for the whole session. Its requests are everybody's: leave it as it was."""
    with serving(demo_model, "--served-model-name", "demo,alias") as served:
        served.wait_ready()
        yield served


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Where everything is meant to run, a test that was skipped has failed."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None or not os.environ.get("CI"):
        return
    if (num := len(reporter.stats.get("skipped", ()))) and session.exitstatus == pytest.ExitCode.OK:
        reporter.write_line(f"{num} skipped, and nothing may be where CI is set", red=True)
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
