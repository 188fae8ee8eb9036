"""Clients that leave, and requests that are aborted, at every stage; seen from outside."""

import random
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest
from tests.e2e.raw import (
    Raw,
    abort,
    all_asked,
    asking,
    at_once,
    call,
    generate,
    is_idle,
    load,
    outcomes,
    paused,
    risen,
    settled,
)
from tests.e2e.serving import Served, serving, until

# Never reached.
MANY = 4000
RUNNING, QUEUED, CHUNK = 4, 8, 128
# What a client would call at once; a loaded machine, and the engine's telling, included.
SOON_S = 2.0
# Of some 2,000 tokens: many steps of CHUNK.
LONG_PROMPT = " word" * 2000


@pytest.fixture(scope="module")
def small(demo_model: Path) -> Iterator[Served]:
    flags = ("--max-running-requests", str(RUNNING), "--max-queued-requests", str(QUEUED))
    with serving(demo_model, "--http-workers", "4", "--max-step-tokens", str(CHUNK), *flags) as s:
        s.wait_ready()
        yield s


@pytest.fixture(autouse=True)
def leaves_nothing(small: Served) -> Iterator[None]:
    """Every test ends with an idle server that holds nothing and found no fault in itself."""
    yield
    until(lambda: is_idle(small), 10)
    assert "[error" not in small.log()
    assert "Traceback" not in small.log()
    assert small.metric("roost_server_faults_total") == 0


def in_flight(served: Served, num: int) -> None:
    """Wait until so many requests are known."""
    until(lambda: served.metric("roost_requests_in_flight") == num)


def stands_still(served: Served) -> bool:
    """No step is made, and no token, for longer than the engine takes to tell of one."""
    before = load(served)
    time.sleep(1.1)
    names = ("num_steps", "generated_tokens_total")
    return all(load(served)[name] == before[name] for name in names)


def test_a_closed_socket_frees_its_slot_within_a_second(small: Served) -> None:
    ways = [(is_stream, by_reset) for is_stream in (True, False) for by_reset in (True, False)]
    with all_asked(small, (asking("The sea", MANY, stream=s) for s, _ in ways)) as raws:
        for (is_stream, _), raw in zip(ways, raws, strict=True):
            if is_stream:
                next(raw.frames())
        until(lambda: load(small)["num_running_reqs"] == RUNNING)
        left_s = time.monotonic()
        for (_, by_reset), raw in zip(ways, raws, strict=True):
            raw.leave(by_reset=by_reset)
    until(lambda: is_idle(small))
    assert time.monotonic() - left_s < SOON_S
    assert stands_still(small)


def test_a_client_that_leaves_before_its_answer_is_logged_as_499(small: Served) -> None:
    body = asking("The sea", MANY, rid="leaves-early")
    with Raw(small, "/generate", body):
        in_flight(small, 1)
    until(lambda: "rid=leaves-early" in small.log())
    (line,) = (x for x in small.lines if "rid=leaves-early" in x)
    assert "[info " in line
    assert "outcome=client_disconnected status=499" in line


def test_an_abort_ends_a_live_request_and_says_so(small: Served) -> None:
    body = asking("The sea", MANY, stream=True, rid="live")
    with Raw(small, "/generate", body) as raw:
        frames = raw.frames()
        next(frames)
        began_s = time.monotonic()
        ask = {"rid": "live", "abort_message": "The operator is sorry."}
        status, done = call(small, "/abort_request", ask)
        assert (status, done["count"]) == (200, 1)
        *_, last, end = frames
        assert time.monotonic() - began_s < SOON_S
    assert end == "[DONE]"
    assert '"type":"abort"' in last
    assert "The operator is sorry." in last


def test_an_abort_of_nothing_is_harmless_and_says_so(small: Served) -> None:
    assert abort(small, "nobody") == 0
    generate(small, "x", 1, rid="over")
    assert abort(small, "over") == 0


def test_an_abort_is_exact(small: Served) -> None:
    with (
        Raw(small, "/generate", asking("The sea", MANY, rid="a")) as a,
        Raw(small, "/generate", asking("The sea", 40, rid="ab")) as ab,
    ):
        in_flight(small, 2)
        for wrong in ({"rid": ""}, {}, {"rid": None}, {"abort_all": False}):
            assert call(small, "/abort_request", wrong)[0] == 400
        assert abort(small, "b") == 0
        assert abort(small, "a") == 1
        assert a.json()["meta_info"]["finish_reason"]["type"] == "abort"
        assert ab.json()["meta_info"]["finish_reason"] == {"type": "length", "length": 40}


def test_an_abort_of_everything_reaches_the_requests_of_all_workers(small: Served) -> None:
    with all_asked(small, (asking("Far", MANY, stream=i % 2 == 0) for i in range(QUEUED))) as raws:
        in_flight(small, QUEUED)
        began_s = time.monotonic()
        status, done = call(small, "/abort_request", {"abort_all": True})
        assert (status, done["count"]) == (200, QUEUED)
        for i, raw in enumerate(raws):
            if i % 2:
                assert raw.json()["meta_info"]["finish_reason"]["type"] == "abort"
            else:
                assert list(raw.frames())[-1] == "[DONE]"
        assert time.monotonic() - began_s < SOON_S


def test_fifty_that_leave_in_a_row_disturb_nobody(small: Served) -> None:
    before, num_lines = outcomes(small), len(small.lines)
    for number in range(50):
        with Raw(small, "/generate", asking("The sea", MANY, stream=True)) as raw:
            next(raw.frames())
            raw.leave(by_reset=number % 2 == 0)
    assert call(small, "/health", method="GET")[0] == 200
    assert generate(small, "The sea", 5)["meta_info"]["completion_tokens"] == 5
    until(lambda: is_idle(small))
    assert risen(before, outcomes(small)) == {"client_disconnected": 50, "length": 1}
    lines = small.lines[num_lines:]
    assert sum("outcome=client_disconnected" in line for line in lines) == 50
    # Tokens that were on their way: a line a second of each worker, that carries the count.
    assert len(lines) <= 50 + 1 + 4 * 10
    assert not [x for x in lines if "[warning" in x and "had left" not in x]


def test_an_abort_that_races_with_the_end_is_answered_either_way(small: Served) -> None:
    began_s = time.monotonic()
    for _ in range(5):
        generate(small, "The sea", 3)
    usual_s = (time.monotonic() - began_s) / 5
    chance = random.Random(1)
    waits = [chance.uniform(0, 4 * usual_s) for _ in range(200)]

    def race(number: int) -> str:
        with Raw(small, "/generate", asking("The sea", 3, rid=f"race-{number}")) as raw:
            time.sleep(waits[number])
            num_ended = abort(small, f"race-{number}")
            kind: str = raw.json()["meta_info"]["finish_reason"]["type"]
            assert raw.status == 200
            # It may still end by itself on the way between two processes.
            assert num_ended == 1 or kind == "length" or waits[number] < usual_s
            return kind

    kinds = at_once(race, range(200), most=6)
    assert set(kinds) == {"abort", "length"}


def test_an_abort_in_the_queue_is_answered_at_once_and_costs_no_step(small: Served) -> None:
    num_steps = settled(small)["num_steps"]
    with paused(small), Raw(small, "/generate", asking(LONG_PROMPT, 5, rid="waits")) as raw:
        in_flight(small, 1)
        began_s = time.monotonic()
        assert abort(small, "waits") == 1
        answer = raw.json()
        assert time.monotonic() - began_s < SOON_S
    assert raw.status == 200
    assert answer["text"] == ""
    assert answer["meta_info"]["finish_reason"]["type"] == "abort"
    assert answer["meta_info"]["finish_reason"]["message"] == "Abort in waiting queue"
    assert answer["meta_info"]["completion_tokens"] == 0
    assert settled(small)["num_steps"] == num_steps


def test_a_queued_request_whose_client_left_never_runs(small: Served) -> None:
    num_steps = settled(small)["num_steps"]
    bodies = (asking("Far", 5, stream=i % 2 == 0) for i in range(QUEUED))
    with paused(small), all_asked(small, bodies) as raws:
        in_flight(small, QUEUED)
        for i, raw in enumerate(raws):
            raw.leave(by_reset=i < 4)
        in_flight(small, 0)
    assert settled(small)["num_steps"] == num_steps


@pytest.mark.parametrize("how", ["leave", "abort"])
def test_a_prompt_in_the_middle_stops_at_the_next_chunk(small: Served, how: str) -> None:
    before = settled(small)["num_steps"]
    with Raw(small, "/generate", asking(LONG_PROMPT, 5, rid="prefill")) as raw:
        until(lambda: load(small)["num_running_reqs"] == 1)
        began_s = time.monotonic()
        if how == "abort":
            assert abort(small, "prefill") == 1
            assert raw.json()["meta_info"]["finish_reason"]["type"] == "abort"
            assert time.monotonic() - began_s < SOON_S
    num_steps = settled(small)["num_steps"] - before
    assert 0 < num_steps < len(LONG_PROMPT) // len(" word") // CHUNK // 2


@pytest.mark.parametrize("is_stream", [False, True])
def test_a_request_that_is_still_tokenised_can_be_aborted(small: Served, is_stream: bool) -> None:
    text = "word " * 800_000  # 4 MB: it takes seconds to find out that it is far too long
    with Raw(small, "/generate", asking(text, 5, stream=is_stream, rid="long")) as raw:
        until(lambda: abort(small, "long") == 1, 5)
        began_s = time.monotonic()
        assert raw.status == 200
        assert '"type":"abort"' in raw.response.read().decode()
        assert time.monotonic() - began_s < SOON_S


def test_the_longest_prompt_is_aborted_right_after_it_was_sent(small: Served) -> None:
    num_steps = settled(small)["num_steps"]
    with Raw(small, "/generate", asking(" word" * 8000, 5, rid="longest")) as raw:
        until(lambda: abort(small, "longest") == 1, 5)
        assert raw.json()["meta_info"]["finish_reason"]["type"] == "abort"
        assert raw.answered_s() < SOON_S
    assert settled(small)["num_steps"] - num_steps < 8000 // CHUNK // 4


def test_all_answers_of_a_request_end_with_its_client(small: Served) -> None:
    with Raw(small, "/generate", asking("The sea", MANY, stream=True, n=4)) as raw:
        next(raw.frames())
        until(lambda: load(small)["num_running_reqs"] == 4)
        left_s = time.monotonic()
    until(lambda: is_idle(small))
    assert time.monotonic() - left_s < SOON_S


def test_several_answers_are_taken_all_or_none(small: Served) -> None:
    with ExitStack() as stack:
        with paused(small):
            bodies = [asking("The sea", 3)] * (QUEUED - 2)
            waiting = stack.enter_context(all_asked(small, bodies))
            in_flight(small, QUEUED - 2)
            for is_stream in (False, True):
                with Raw(small, "/generate", asking("Far", 3, n=4, stream=is_stream)) as refused:
                    assert refused.status == 503
                    assert refused.header("retry-after") == "1"
            in_flight(small, QUEUED - 2)
            two = stack.enter_context(Raw(small, "/generate", asking("The sea", 3, n=2)))
            in_flight(small, QUEUED)
        for raw in waiting:
            assert raw.json()["meta_info"]["finish_reason"] == {"type": "length", "length": 3}
        assert [answer["index"] for answer in two.json()] == [0, 1]


def test_one_that_waits_long_with_its_client_there_is_answered(small: Served) -> None:
    with ExitStack() as stack:
        with paused(small):
            bodies = (asking("The sea", 3, stream=is_stream) for is_stream in (True, False))
            streamed, whole = stack.enter_context(all_asked(small, bodies))
            time.sleep(10)
        assert list(streamed.frames())[-1] == "[DONE]"
        assert whole.json()["meta_info"]["finish_reason"] == {"type": "length", "length": 3}


def test_a_connection_that_is_kept_serves_on_after_an_abort(small: Served) -> None:
    with httpx.Client(base_url=small.url, timeout=30) as client:
        for number in range(3):
            with paused(small):
                at_once(lambda n: client_aborted(small, client, n), [number])
            assert client.post("/generate", json=asking("x", 2)).status_code == 200


def client_aborted(small: Served, client: httpx.Client, number: int) -> None:
    def ask() -> httpx.Response:
        return client.post("/generate", json=asking("x", 5, rid=f"kept-{number}"))

    def end() -> httpx.Response | None:
        until(lambda: abort(small, f"kept-{number}") == 1)
        return None

    answer, _ = at_once(lambda do: do(), [ask, end])
    assert answer is not None
    assert answer.json()["meta_info"]["finish_reason"]["type"] == "abort"
