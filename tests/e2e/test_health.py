"""What probes see of a server of four HTTP workers that needs a key: idle, busy, and stopped."""

import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.e2e.raw import Json, Raw, asking, at_once, is_idle, outcomes
from tests.e2e.serving import Served, serving, until

KEY = "a-key-for-the-tests"
HEARTBEAT_TIMEOUT_S = 2.0


@pytest.fixture(scope="module")
def four(demo_model: Path) -> Iterator[Served]:
    # Short steps: the longest of them must be well below the time limit.
    limits = ("--heartbeat-timeout", str(HEARTBEAT_TIMEOUT_S), "--max-step-tokens", "128")
    with serving(demo_model, "--http-workers", "4", "--api-key", KEY, *limits) as served:
        served.wait_ready()
        yield served


def probe(served: Served, path: str) -> tuple[int, float]:
    """Status, and seconds until it came, on a fresh connection and without a key."""
    with Raw(served, path, method="GET") as raw:
        return raw.status, raw.answered_s()


def keyed(served: Served, num_tokens: int, *, text: str = "The sea", **more: Json) -> Raw:
    return Raw(served, "/generate", asking(text, num_tokens, **more), key=KEY)


def test_an_idle_server_says_at_once_that_it_is_well(four: Served) -> None:
    times = sorted(probe(four, "/health")[1] for _ in range(300))
    assert times[296] < 0.1, "the 99th percentile"


def test_probes_need_no_key_and_all_else_does_at_every_worker(four: Served) -> None:
    for path in ("/health", "/ready", "/ping", "/health_generate", "/metrics"):
        assert {probe(four, path)[0] for _ in range(8)} == {200}, path

    def ask(key: str | None) -> int:
        body = asking("x", 1)
        with Raw(four, "/generate", body, key=key) as raw:
            return raw.status

    assert at_once(ask, [KEY, None, "wrong", ""] * 20, most=16) == [200, 401, 401, 401] * 20
    with Raw(four, "/v1/models", method="GET") as raw:
        assert raw.status == 401
        error = raw.json()["error"]
        assert error["type"] == "authentication_error"
        assert error["code"] == "invalid_api_key"
    for path in ("/abort_request", "/open_session", "/flush_cache", "/pause_generation"):
        with Raw(four, path, {}) as raw:
            assert raw.status == 401, path


def test_a_long_prompt_does_not_make_it_ill(four: Served) -> None:
    with keyed(four, 1, text=" word" * 4000) as raw:
        until(lambda: four.metric("roost_engine_running_requests") == 1)
        num = 0
        while four.metric("roost_engine_running_requests") and num < 60:
            for path in ("/health", "/ready"):
                status, took_s = probe(four, path)
                assert (status, took_s < 1) == (200, True)
            num += 1
            time.sleep(0.05)
        assert num > 20
        raw.leave()
    until(lambda: is_idle_here(four))


def test_a_prompt_of_megabytes_makes_nobody_wait(four: Served) -> None:
    # Seconds of tokenising, in one of the workers; the probes come to all of them.
    with keyed(four, 1, text="word " * 800_000):
        until(lambda: four.metric("roost_requests_in_flight") == 1)
        found = [probe(four, "/health") for _ in range(40)]
    assert {status for status, _ in found} == {200}
    assert max(took_s for _, took_s in found) < 0.5


def is_idle_here(served: Served) -> bool:
    """As `is_idle`, whose route needs a key."""
    names = ("running_requests", "waiting_requests", "kv_used_tokens")
    return (
        all(served.metric(f"roost_engine_{name}") == 0 for name in names)
        and served.metric("roost_requests_in_flight") == 0
    )


def test_a_thousand_probes_under_load_pass_and_are_no_traffic(four: Served) -> None:
    before, num_lines = outcomes(four), len(four.lines)
    with ExitStack() as stack:
        for _ in range(4):
            raw = stack.enter_context(keyed(four, 4000, stream=True))
            next(raw.frames())
        found = at_once(lambda _: probe(four, "/health_generate"), range(1000), most=16)
    assert {status for status, _ in found} == {200}
    assert max(took_s for _, took_s in found) < 5
    until(lambda: is_idle_here(four))
    after = outcomes(four)
    assert after == before | {"client_disconnected": before["client_disconnected"] + 4}
    log = "".join(four.lines[num_lines:])
    assert "HEALTH" not in log
    assert "/health" not in log
    assert "[error" not in log


def test_probes_that_generate_pass_when_the_queue_is_full(demo_model: Path) -> None:
    flags = ("--max-running-requests", "1", "--max-queued-requests", "1")
    with serving(demo_model, *flags) as served:
        served.wait_ready()
        with Raw(served, "/generate", asking("The sea", 4000, stream=True)) as runs:
            next(runs.frames())
            with Raw(served, "/generate", asking("The sea", 4000)):
                until(lambda: served.metric("roost_requests_in_flight") == 2)
                with Raw(served, "/generate", asking("The sea", 1)) as refused:
                    assert refused.status == 503
                assert {probe(served, "/health_generate")[0] for _ in range(20)} == {200}
        until(lambda: is_idle(served))


def test_an_engine_that_stands_still_shows_in_time_and_one_that_goes_on_is_well(
    four: Served,
) -> None:
    engine = four.children()[0]
    with keyed(four, 200, stream=True) as raw:
        frames = raw.frames()
        next(frames)
        engine.suspend()
        try:
            stopped_s = time.monotonic()
            until(lambda: probe(four, "/health")[0] == 503, 10)
            assert time.monotonic() - stopped_s < HEARTBEAT_TIMEOUT_S + 0.5
            # Every worker has noticed, and answers at once.
            time.sleep(0.5)
            for path in ("/health", "/ready"):
                for _ in range(8):
                    status, took_s = probe(four, path)
                    assert (status, took_s < 0.5) == (503, True)
        finally:
            engine.resume()
        until(lambda: {probe(four, "/health")[0] for _ in range(8)} == {200}, 2)
        # The stream was only slow.
        *_, last, end = frames
        assert '"type":"length"' in last
        assert end == "[DONE]"
    assert "[error" not in four.log()
