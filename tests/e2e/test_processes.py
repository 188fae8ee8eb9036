"""What happens to a server's processes, and what its clients see of it."""

import json
import os
import signal
import socket
import time
from pathlib import Path

import httpx
import psutil
import pytest
from tests.e2e.serving import Served, Streamed, free_port, serving, until

# Far more than is generated before a test cuts in.
MANY = 6000


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
    with serving(demo_model, "--http-workers", "4") as served:
        served.wait_ready()
        engine, *workers = served.children()
        for _ in range(10):
            assert Streamed(served.url, 1).ended()[-1] == "[DONE]"
        streams = [Streamed(served.url, 120) for _ in range(16)]
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
        # What the dead life had counted is still there, and nothing is at hand.
        num_ended = 10 + len(whole)
        length = 'roost_requests_total{outcome="length"}'
        assert served.metric(length) == num_ended
        until(lambda: served.metric("roost_engine_running_requests") == 0, 5)
        assert served.metric("roost_requests_in_flight") == 0
        until(lambda: len(served.children()) == 5)
        assert engine.is_running()
        for num_more in range(1, 9):
            assert Streamed(served.url, 1).ended()[-1] == "[DONE]"
            assert served.metric(length) == num_ended + num_more
        assert served.metric("roost_server_faults_total") == 0
        assert "it is started again" in served.log()
        served.process.send_signal(signal.SIGTERM)
        assert served.ends() == 0


def test_a_new_life_that_dies_at_once_is_followed_by_another(demo_model: Path) -> None:
    with serving(demo_model, "--http-workers", "2") as served:
        served.wait_ready()
        first = {child.pid for child in psutil.Process(served.process.pid).children()}
        served.children()[1].kill()
        until(lambda: len(newborn(served, first)) == 1)
        newborn(served, first)[0].kill()
        until(lambda: len(served.children()) == 3)
        assert served.log().count("it is started again") == 2
        for _ in range(8):
            assert Streamed(served.url, 1).ended()[-1] == "[DONE]"


def newborn(served: Served, known: set[int]) -> list[psutil.Process]:
    return [c for c in psutil.Process(served.process.pid).children() if c.pid not in known]


def test_eight_workers_serve_and_none_says_ready_before_all_can(demo_model: Path) -> None:
    with serving(demo_model, "--http-workers", "8") as served:
        answers: list[int] = []
        while not answers or answers[-1] != 200:
            assert served.process.poll() is None, served.log()
            try:
                answers.append(served.fresh.get(f"{served.url}/ready").status_code)
            except httpx.ConnectError:  # not even the supervisor is there
                time.sleep(0.02)
        assert set(answers) <= {200, 503}
        assert len(served.children()) == 9
        body = {"text": "The sea", "sampling_params": {"max_new_tokens": 2, "temperature": 0}}
        texts = set()
        for _ in range(40):
            answer = served.fresh.post(f"{served.url}/generate", json=body)
            assert answer.status_code == 200
            texts.add(answer.json()["text"])
        assert len(texts) == 1
        assert served.metric('roost_requests_total{outcome="length"}') == 40


def test_workers_that_cannot_start_end_the_server_with_one_line(
    demo_model: Path, tmp_path: Path
) -> None:
    template = tmp_path / "nowhere.jinja"
    flags = ("--http-workers", "4", "--chat-template", str(template))
    with serving(demo_model, *flags) as served:
        assert served.ends() == 1
    assert "Traceback" not in served.log()
    (line,) = (line for line in served.log().splitlines() if str(template) in line)
    assert "cannot be read" in line


def test_the_log_level_is_set_in_every_process_and_in_new_ones(demo_model: Path) -> None:
    with serving(demo_model, "--http-workers", "4") as served:
        served.wait_ready()
        set_level(served, "warning")
        for _ in range(16):
            assert Streamed(served.url, 1).ended()[-1] == "[DONE]"
        before = {child.pid for child in served.children()}
        served.children()[1].kill()
        until(lambda: len({child.pid for child in served.children()} - before) == 1)
        for _ in range(16):
            assert Streamed(served.url, 1).ended()[-1] == "[DONE]"
        assert "request ended" not in served.log()
        set_level(served, "info")
        for _ in range(16):
            assert Streamed(served.url, 1).ended()[-1] == "[DONE]"
        until(lambda: served.log().count("request ended") == 16)


def set_level(served: Served, level: str) -> None:
    answer = served.fresh.post(f"{served.url}/configure_logging", json={"log_level": level})
    assert answer.status_code == 200, answer.text


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
        until(lambda: served.log().count("client_disconnected") == 48)
        # The engine says how it fares twice a second.
        figures = ("running_requests", "waiting_requests", "kv_used_tokens")
        until(lambda: not any(served.metric(f"roost_engine_{name}") for name in figures))
        assert "[error" not in served.log()
        served.process.send_signal(signal.SIGTERM)
        assert served.ends() == 0
