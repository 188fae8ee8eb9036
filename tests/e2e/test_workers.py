"""Several HTTP workers are one server: whichever of them is asked."""

import json
import time
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest
from tests.e2e.raw import (
    Json,
    Raw,
    all_asked,
    asking,
    at_once,
    call,
    generate,
    get,
    is_idle,
    outcomes,
    paused,
)
from tests.e2e.serving import Served, serving, until

RUNNING, QUEUED = 4, 8
FLAGS = ("--max-running-requests", str(RUNNING), "--max-queued-requests", str(QUEUED))


@pytest.fixture(scope="module")
def four(demo_model: Path) -> Iterator[Served]:
    with serving(demo_model, "--http-workers", "4", *FLAGS) as served:
        served.wait_ready()
        yield served


@pytest.fixture(scope="module", params=[1, 2, 4])
def any_number(request: pytest.FixtureRequest, demo_model: Path, four: Served) -> Iterator[Served]:
    if request.param == 4:
        yield four
        return
    with serving(demo_model, "--http-workers", str(request.param), *FLAGS) as served:
        served.wait_ready()
        yield served


def test_a_list_of_prompts_comes_back_whole(any_number: Served) -> None:
    prompts = ["One", "Two", "Three", "Four", "Five"]

    def ask(number: int) -> None:
        body = asking("", 2, stream=number % 2 == 0) | {"text": prompts}
        with Raw(any_number, "/generate", body) as raw:
            if number % 2:
                assert len(raw.json()) == 5
                return
            frames = list(raw.frames())
        ended = [f for f in frames if '"type":"length"' in f]
        assert len(ended) == 5
        assert frames[-1] == "[DONE]"

    at_once(ask, range(16), most=1)


def test_one_too_many_is_refused_at_once(any_number: Served) -> None:
    def one_more(number: int) -> None:
        body = asking("The sea", 2, stream=number % 2 == 0)
        with Raw(any_number, "/generate", body) as refused:
            assert refused.status == 503
            assert refused.answered_s() < 1
            assert refused.header("retry-after") == "1"
            assert refused.json()["error"]["message"] == "The request queue is full."

    with ExitStack() as stack:
        with paused(any_number):
            bodies = [asking("The sea", 2)] * QUEUED
            raws = stack.enter_context(all_asked(any_number, bodies))
            until(lambda: any_number.metric("roost_requests_in_flight") == QUEUED)
            before = outcomes(any_number)["queue_full"]
            at_once(one_more, range(32))
            assert outcomes(any_number)["queue_full"] == before + 32
        for raw in raws:
            assert raw.json()["meta_info"]["finish_reason"] == {"type": "length", "length": 2}


@pytest.mark.parametrize("mode", ["abort", "retract", "in_place"])
def test_a_pause_holds_for_every_worker_and_afterwards_all_go_on(four: Served, mode: str) -> None:
    undisturbed = generate(four, "The sea", 40)["text"]
    with ExitStack() as stack:
        running = stack.enter_context(Raw(four, "/generate", asking("The sea", 40, stream=True)))
        frames = running.frames()
        next(frames)
        assert call(four, "/pause_generation", {"mode": mode})[0] == 200
        try:
            # One that gives its place back stands in the queue with those that came behind it.
            bodies = [asking("Far", 1)] * (QUEUED - 1)
            raws = stack.enter_context(all_asked(four, bodies))
            num_live = len(raws) + (mode != "abort")
            until(lambda: four.metric("roost_requests_in_flight") == num_live)
            time.sleep(0.5)
            assert four.metric("roost_requests_in_flight") == num_live
        finally:
            assert call(four, "/continue_generation", {})[0] == 200
        *_, last, end = frames
        assert end == "[DONE]"
        kind = "abort" if mode == "abort" else "length"
        assert f'"type":"{kind}"' in last
        if mode != "abort":
            assert json.loads(last)["text"] == undisturbed
        for raw in raws:
            assert raw.json()["meta_info"]["completion_tokens"] == 1
    at_once(lambda i: generate(four, f"{i}", 1), range(100), most=QUEUED)


def test_every_worker_says_the_same_of_the_model_and_the_server(four: Served) -> None:
    for path in ("/model_info", "/v1/models"):
        answers = at_once(partial(get, four), [path] * 50)
        assert answers[0][0] == 200
        assert all(answer == answers[0] for answer in answers)


def test_every_scrape_counts_the_requests_of_all_workers(four: Served) -> None:
    before = outcomes(four)
    tokens = four.metric("roost_generation_tokens_total")
    at_once(lambda i: generate(four, f"{i}", 3), range(40), most=8)
    for _ in range(25):
        assert outcomes(four) == before | {"length": before["length"] + 40}
    assert four.metric("roost_generation_tokens_total") == tokens + 40 * 3
    assert four.metric("roost_requests_in_flight") == 0


def test_the_log_level_is_set_in_every_worker(four: Served) -> None:
    def ask(rid: str) -> None:
        generate(four, "x", 1, rid=rid)

    for level in ("warning", "info"):
        assert call(four, "/configure_logging", {"log_level": level})[0] == 200
        at_once(ask, [f"at-{level}-{i}" for i in range(20)], most=QUEUED)
    until(lambda: four.log().count("rid=at-info-") == 20)
    assert four.log().count("rid=at-warning-") == 0


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/update_weights_from_disk", {"model_path": "x"}, 404),
        ("/release_memory_occupation", {}, 404),
        ("/pause_generation", {"mode": "sideways"}, 400),
        ("/pause_generation", {"mode": 7}, 400),
        ("/configure_logging", {"log_level": "loudly"}, 400),
        ("/flush_cache?timeout=never", None, 400),
        ("/close_session", {"session_id": "nobody"}, 400),
    ],
)
def test_a_control_call_that_is_not_known_is_refused_and_harms_nobody(
    four: Served, path: str, body: Json, status: int
) -> None:
    assert call(four, path, body)[0] == status
    assert generate(four, "The sea", 2)["meta_info"]["completion_tokens"] == 2


def test_a_flush_waits_for_what_runs_and_one_at_a_time(four: Served) -> None:
    undisturbed = generate(four, "The sea", 60)["text"]
    with Raw(four, "/generate", asking("The sea", 60)) as running:
        until(lambda: four.metric("roost_requests_in_flight") == 1)
        assert call(four, "/flush_cache")[0] == 200
        assert call(four, "/flush_cache?timeout=0")[0] == 400
        with Raw(four, "/flush_cache?timeout=20") as waits:
            time.sleep(0.1)
            status, refused = call(four, "/flush_cache?timeout=20")
            assert status == 400
            assert "flush" in str(refused).lower()
            assert waits.status == 200
        assert running.json()["text"] == undisturbed
    until(lambda: is_idle(four))
    assert call(four, "/flush_cache", method="GET")[0] == 200


def test_a_flush_that_waits_in_vain_is_refused(four: Served) -> None:
    with Raw(four, "/generate", asking("The sea", 4000)) as running:
        until(lambda: four.metric("roost_requests_in_flight") == 1)
        with Raw(four, "/flush_cache?timeout=0.3") as refused:
            assert refused.status == 400
            assert 0.3 <= refused.answered_s() < 1.5
            assert "running" in str(refused.json())
        running.leave()
    until(lambda: is_idle(four))
