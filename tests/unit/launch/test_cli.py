"""The command line from outside: what it prints, and its exit codes."""

import resource
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from roost import __version__
from roost.core.config import all_settings
from roost.launch.cli import app


@pytest.fixture(autouse=True)
def no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    for name in list(os.environ):
        if name.startswith("ROOST_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "200")


def roost(*args: str) -> Result:
    return CliRunner().invoke(app, list(args))


def explained(result: Result, name: str) -> tuple[str, str]:
    """(value, why) of one setting in the table."""
    assert result.exit_code == 0, result.output
    (line,) = (x for x in result.stdout.splitlines() if x.split()[:1] == [name])
    rest = line.removeprefix(name).strip()
    value, _, why = rest.partition("  ")
    return value, why.strip()


def test_version_is_one_line() -> None:
    result = roost("--version")
    assert (result.exit_code, result.stdout) == (0, f"roost {__version__}\n")


def test_help_needs_little_work() -> None:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [sys.executable, "-m", "roost.launch", "--help"], check=True, capture_output=True, text=True
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    for command in ("serve", "chat", "generate", "doctor"):
        assert command in done.stdout
    # Processor time: wall time says more about the other tests than about this one.
    spent_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    assert spent_s < 0.5


def test_the_help_of_a_command_has_every_setting_once_under_its_part() -> None:
    text = roost("serve", "--help").stdout
    sections = [text.index(f"\n{title}:\n") for title in ("Options", "Model", "Server", "Engine")]
    assert sections == sorted(sections)
    assert sections[2] < text.index("\n  --port INTEGER ") < sections[3]
    for setting in all_settings():
        assert text.count(f"\n  {setting.flag} ") == 1, setting.flag


@pytest.mark.parametrize(
    ("entry", "unwanted"),
    [
        ("roost.launch.serve", {"numpy", "rich", "asyncio", "roost._native"}),
        ("roost.launch.http_worker", {"numpy", "rich", "roost._native"}),
        ("roost.launch.engine_process", {"rich", "asyncio", "jinja2", "starlette"}),
    ],
)
def test_a_process_loads_only_what_it_needs(entry: str, unwanted: set[str]) -> None:
    check = f"import sys, {entry}; print(*({unwanted!r} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", check], check=True, capture_output=True, text=True)
    assert done.stdout == "\n"


def test_import_roost_loads_next_to_nothing() -> None:
    check = "import sys, roost; assert not {'numpy', 'msgspec', 'click'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", check], check=True)


def test_flag_beats_variable_beats_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "roost.toml"
    file.write_text('port = 3\nhost = "::1"\nmax_queued_requests = 7\napi_key = ["secret"]\n')
    monkeypatch.setenv("ROOST_PORT", "2")
    monkeypatch.setenv("ROOST_HOST", "localhost")
    result = roost("serve", "some.gguf", "--config", str(file), "--port", "1", "--explain")
    assert explained(result, "port") == ("1", "--port")
    assert explained(result, "host") == ("localhost", "ROOST_HOST")
    assert explained(result, "max_queued_requests") == ("7", f"{file}: max_queued_requests")
    assert explained(result, "model") == ("some.gguf", "--model")
    assert explained(result, "api_key")[0] == "(set)"
    assert "secret" not in result.output
    assert explained(result, "kv_dtype") == ("bf16", "default")


def test_the_file_may_be_named_by_a_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "roost.toml"
    file.write_text("port = 3\n")
    monkeypatch.setenv("ROOST_CONFIG", str(file))
    assert explained(roost("serve", "--explain"), "port")[0] == "3"


def test_what_the_machine_decides_comes_with_its_reason() -> None:
    result = roost("serve", "--explain")
    num_threads, reason = explained(result, "threads")
    assert int(num_threads) >= 1
    assert reason
    assert explained(result, "isa")[1].startswith("best of")


def test_the_cache_is_where_the_user_keeps_caches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/var/cache/me")
    result = roost("serve", "--explain")
    assert explained(result, "cache_dir") == ("/var/cache/me/roost", "XDG_CACHE_HOME")


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--port", "x"), "--port must be an integer, got 'x'"),
        (("--port", "70000"), "--port must be an integer <= 65535, got '70000'"),
        (("--model", ""), "--model must be text of length >= 1, got ''"),
        (("a", "--model", "b"), "the model is named twice: a and --model b"),
        (
            ("--config", "/nowhere.toml"),
            "the config file /nowhere.toml cannot be read: No such file or directory",
        ),
    ],
)
def test_a_wrong_setting_is_one_line_and_exit_code_1(args: tuple[str, ...], message: str) -> None:
    result = roost("serve", *args, "--explain")
    assert (result.exit_code, result.stderr) == (1, f"roost: {message}\n")
    assert result.stdout == ""


def test_an_unknown_variable_is_an_error_with_a_suggestion(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROOST_THREAD", "2")
    result = roost("serve", "--explain")
    assert result.exit_code == 1
    assert result.stderr == (
        "roost: ROOST_THREAD is not a setting of roost; did you mean ROOST_THREADS?\n"
    )


def test_an_unknown_key_or_a_broken_file_is_named(tmp_path: Path) -> None:
    file = tmp_path / "roost.toml"
    file.write_text("prot = 1\n")
    result = roost("serve", "--config", str(file), "--explain")
    assert result.stderr == (
        f"roost: {file}: prot is not a setting of roost; did you mean {file}: port?\n"
    )
    file.write_text("port = = 1\n")
    result = roost("serve", "--config", str(file), "--explain")
    assert result.exit_code == 1
    assert result.stderr.startswith(f"roost: the config file {file} is not TOML: ")


def test_an_unknown_flag_is_a_usage_error() -> None:
    assert roost("serve", "--prot", "1").exit_code == 2
    assert roost("nothing").exit_code == 2


def test_doctor_finds_the_demo_model_well(demo_model: Path, tmp_path: Path) -> None:
    result = roost("doctor", str(demo_model), "--port", "0", "--cache-dir", str(tmp_path))
    assert result.exit_code == 0, result.output
    assert "SmolLM2-135M-Instruct" in result.stdout
    assert result.stdout.count("✓") >= 6


def test_doctor_fails_where_serving_would(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        broken = tmp_path / "broken.gguf"
        broken.write_bytes(b"GGUF but not really")
        result = roost("doctor", str(broken), "--port", port)
    assert result.exit_code == 1
    assert f"127.0.0.1:{port}: Address already in use" in result.stdout
    assert "broken.gguf" in result.stdout
    assert result.stdout.count("✗") == 2


def test_a_model_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    result = roost("generate", "hi", "--model", str(tmp_path / "none.gguf"))
    assert result.exit_code == 1
    assert result.stderr.startswith("roost: ")
    assert "Traceback" not in result.output
