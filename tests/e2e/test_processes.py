"""What happens to a server's processes, and what its clients see of it."""

import json
import os
import signal
import socket
import time
from pathlib import Path

import httpx
import pytest
from tests.e2e.serving import Streamed, free_port, serving, until

# Far more than is generated before a test cuts in.
MANY = 6000


def test_sigterm_lets_running_streams_finish_and_takes_nothing_new(demo_model: Path) -> None:
    with serving(demo_model) as served:
        served.wait_ready()
        stream = Streamed(served.url, 100)
        stream.has_begun()
        served.process.send_signal(signal.SIGTERM)
        until(lambda: httpx.get(f"{served.url}/ready").status_code == 503)
        body = {"text": "x", "sampling_params": {"max_new_tokens": 1}}
        refused = httpx.post(f"{served.url}/generate", json=body)
        assert refused.status_code == 503
        assert stream.ended()[-1] == "[DONE]"
        assert stream.finish_reason() == "length"
        assert served.ends() == 0


def test_what_does_not_finish_in_time_ends_as_shutting_down(demo_model: Path) -> None:
    with serving(demo_model, "--drain-timeout", "0.2") as served:
        served.wait_ready()
        stream = Streamed(served.url, MANY)
        stream.has_begun()
        served.process.send_signal(signal.SIGINT)
        frames = stream.ended()
        assert "shutting down" in next(f for f in frames if '"error"' in f)
        assert served.ends() == 0
        assert "shutting_down" in served.log()


def test_a_second_signal_ends_at_once(demo_model: Path) -> None:
    with serving(demo_model) as served:
        served.wait_ready()
        stream = Streamed(served.url, MANY)
        stream.has_begun()
        served.process.send_signal(signal.SIGTERM)
        until(lambda: httpx.get(f"{served.url}/ready").status_code == 503)
        began_s = time.monotonic()
        served.process.send_signal(signal.SIGTERM)
        assert served.ends() == 0
        assert time.monotonic() - began_s < 5
        stream.ended()


def test_when_the_supervisor_is_killed_nothing_is_left_and_the_port_is_free(
    demo_model: Path,
) -> None:
    port = free_port()
    with serving(demo_model, "--http-workers", "2", port=port) as served:
        served.wait_ready()
        children = served.children()
        assert len(children) == 3
        stream = Streamed(served.url, MANY)
        stream.has_begun()
        os.kill(served.process.pid, signal.SIGKILL)
        until(lambda: not any(child.is_running() for child in children), 10)
        stream.ended()
        assert stream.error is not None
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", port))


def test_a_port_in_use_is_one_line_before_anything_loads(demo_model: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with serving(demo_model, port=port) as served:
            assert served.ends() == 1
        (line,) = served.log().splitlines()
        assert f"port {port} of 127.0.0.1 is in use" in line


@pytest.mark.parametrize("content", [None, b"GGUF but no more"])
def test_a_model_that_cannot_be_loaded_is_said_once_and_cleanly(
    tmp_path: Path, content: bytes | None
) -> None:
    path = tmp_path / "broken.gguf"
    if content is not None:
        path.write_bytes(content)
    with serving(path) as served:
        assert served.ends() == 1
    assert "Traceback" not in served.log()
    assert sum("broken.gguf" in line for line in served.log().splitlines()) == 1


def test_a_worker_that_dies_takes_only_its_own_with_it_and_comes_back(demo_model: Path) -> None:
    with serving(demo_model, "--http-workers", "2") as served:
        served.wait_ready()
        engine, *workers = served.children()
        streams = [Streamed(served.url, 120) for _ in range(8)]
        for stream in streams:
            stream.has_begun()
        counts = [len(w.net_connections(kind="tcp")) for w in workers]
        victim = workers[counts.index(max(counts))]
        victim.kill()
        for stream in streams:
            stream.ended()
        cut = [s for s in streams if s.error is not None]
        whole = [s for s in streams if s.error is None]
        assert cut
        assert all(s.frames[-1] == "[DONE]" for s in whole)
        assert all(s.finish_reason() == "length" for s in whole)
        until(lambda: len(served.children()) == 3)
        until(lambda: served.metric("roost_engine_running_requests") == 0)
        assert engine.is_running()
        fresh = Streamed(served.url, 5)
        assert fresh.ended()[-1] == "[DONE]"
        assert "it is started again" in served.log()
        served.process.send_signal(signal.SIGTERM)
        assert served.ends() == 0


def test_when_the_engine_dies_its_clients_are_told_and_the_exit_code_says_so(
    demo_model: Path,
) -> None:
    with serving(demo_model) as served:
        served.wait_ready()
        stream = Streamed(served.url, MANY)
        stream.has_begun()
        served.children()[0].kill()
        error = next(json.loads(f) for f in stream.ended() if '"error"' in f)
        assert "the engine died" in error["error"]["message"]
        assert served.ends() == 1
        log = served.log()
        assert "killed by SIGKILL" in log
        assert sum("engine_fault" in line for line in log.splitlines()) == 1


def test_clients_that_leave_are_nobodys_fault_and_leave_nothing_behind(demo_model: Path) -> None:
    with serving(demo_model, "--http-workers", "2") as served:
        served.wait_ready()
        for _ in range(3):
            leavers = [Streamed(served.url, MANY) for _ in range(16)]
            for leaver in leavers:
                leaver.has_begun()
                leaver.leave()
        until(lambda: served.metric("roost_engine_running_requests") == 0)
        assert served.metric("roost_engine_waiting_requests") == 0
        assert served.log().count("client_disconnected") == 48
        assert "[error" not in served.log()
        served.process.send_signal(signal.SIGTERM)
        assert served.ends() == 0
