"""How a server ends: what runs is finished, what comes is refused, and nothing is left."""

import contextlib
import signal
import time
from pathlib import Path

import httpx
import psutil
import pytest
from tests.e2e.serving import Streamed, serving, until

# Far more than is generated before a test cuts in.
MANY = 6000


def test_sigterm_lets_running_streams_finish_and_takes_nothing_new(demo_model: Path) -> None:
    with serving(demo_model, "--http-workers", "4", "--drain-timeout", "60") as served:
        served.wait_ready()
        ready = f"{served.url}/ready"
        kept = [httpx.Client(base_url=served.url, timeout=30) for _ in range(8)]
        assert all(client.get("/ready").status_code == 200 for client in kept)
        streams = [Streamed(served.url, 400) for _ in range(6)]
        for stream in streams:
            stream.has_begun()
        served.process.send_signal(signal.SIGTERM)
        until(lambda: all(served.fresh.get(ready).status_code == 503 for _ in range(8)))
        body = {"text": "x", "sampling_params": {"max_new_tokens": 1}, "stream": True}
        refusals = [client.post("/generate", json=body) for client in kept]
        refusals += [served.fresh.post(f"{served.url}/generate", json=body) for _ in range(8)]
        for refusal in refusals:
            assert refusal.status_code == 503
            assert refusal.headers["connection"] == "close"
            assert "shutting down" in refusal.json()["message"]
        for stream in streams:
            assert stream.ended()[-1] == "[DONE]"
            assert stream.finish_reason() == "length"
        assert served.ends() == 0
        for client in kept:
            client.close()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_idle_server_ends_within_two_seconds_whoever_is_still_connected(
    demo_model: Path, number: signal.Signals
) -> None:
    with serving(demo_model, "--http-workers", "4") as served:
        served.wait_ready()
        family = [psutil.Process(served.process.pid), *served.children()]
        with contextlib.ExitStack() as connected:
            for _ in range(12):
                client = connected.enter_context(httpx.Client(base_url=served.url))
                assert client.get("/health").status_code == 200
            began_s = time.monotonic()
            served.process.send_signal(number)
            assert served.ends() == 0
            assert not psutil.wait_procs(family, timeout=2)[1]
            assert time.monotonic() - began_s < 2


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
        until(lambda: served.fresh.get(f"{served.url}/ready").status_code == 503)
        began_s = time.monotonic()
        served.process.send_signal(signal.SIGTERM)
        assert served.ends() == 0
        assert time.monotonic() - began_s < 5
        stream.ended()
