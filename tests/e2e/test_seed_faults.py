"""The two faults that roost exists to rule out, on real processes with four HTTP workers: an error
that does not find its client, and a client that leaves and counts as a fault of the server.
"""

import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

import pytest
from tests.e2e.raw import (
    Raw,
    abort,
    all_asked,
    answered_s,
    asking,
    at_once,
    call,
    generate,
    get,
    has_in_flight,
    is_idle,
    outcomes,
    risen,
    samples,
)
from tests.e2e.serving import Served, serving, until

NUM_CLIENTS, NUM_AT_ONCE = 1000, 100
# Never reached: each of them leaves long before.
MANY = 4000
CLIENT_ENDINGS = {"client_disconnected", "client_cancelled"}


@pytest.fixture(scope="module")
def four(demo_model: Path) -> Iterator[Served]:
    with serving(demo_model, "--http-workers", "4") as served:
        served.wait_ready()
        yield served


@pytest.mark.parametrize("is_stream", [False, True])
def test_an_unknown_session_is_refused_at_its_own_client_at_once(
    four: Served, is_stream: bool
) -> None:
    bodies = (
        asking("x", 4, stream=is_stream, session_params={"id": f"none-{number}"})
        for number in range(200)
    )
    with all_asked(four, bodies) as raws:
        assert max(answered_s(raws)) < 1
        for number, raw in enumerate(raws):
            text = f"Invalid request: session id none-{number} does not exist"
            assert (raw.status, raw.json()["error"]["message"]) == (400, text)


def test_a_closing_session_refuses_each_turn_at_its_own_client_at_once(four: Served) -> None:
    assert call(four, "/open_session", {"session_id": "s", "capacity_of_str_len": 0})[0] == 200
    running = asking("The sea", 200, stream=True, session_params={"id": "s"})
    with Raw(four, "/generate", running) as raw:
        frames = raw.frames()
        next(frames)
        assert call(four, "/close_session", {"session_id": "s"})[0] == 200
        bodies = (
            asking("x", 4, stream=number % 2 == 0, session_params={"id": "s"})
            for number in range(200)
        )
        with all_asked(four, bodies) as refused:
            assert max(answered_s(refused)) < 1
            text = "Invalid request: close was requested for session s"
            for one in refused:
                assert (one.status, one.json()["error"]["message"]) == (400, text)
        assert get(four, "/sessions")[1] != []
        assert list(frames)[-1] == "[DONE]"
    until(lambda: get(four, "/sessions")[1] == [])
    until(lambda: is_idle(four))


@dataclass(frozen=True)
class Client:
    """One that gives up. `after`: seconds since its request is known, or frames that came."""

    rid: str
    how: Literal["fin", "rst", "abort"]
    is_stream: bool
    n: int
    after_s: float
    after_frames: int


def drawn(number: int) -> Client:
    """Half of them stream, and half of those get part of their answer."""
    chance = random.Random(number)
    is_stream = number % 2 == 0
    return Client(
        rid=f"gives-up-{number}",
        how=chance.choice(("fin", "rst", "abort")),
        is_stream=is_stream,
        n=chance.choice((1, 1, 1, 2)),
        after_s=chance.uniform(0, 0.5),
        after_frames=chance.randint(1, 10) if is_stream and chance.random() < 0.5 else 0,
    )


def give_up(served: Served, client: Client, raw: Raw) -> None:
    """Leave, or be aborted by way of a connection to whichever worker."""
    if client.after_frames:
        frames = raw.frames()
        for _ in range(client.after_frames):
            assert '"error"' not in next(frames)
    else:
        time.sleep(client.after_s)
    if client.how != "abort":
        raw.leave(by_reset=client.how == "rst")
        return
    assert abort(served, client.rid) == client.n
    if client.is_stream:
        last = list(raw.frames())[-client.n - 1 :]
        assert last[-1] == "[DONE]"
        assert all('"type":"abort"' in frame for frame in last[:-1])
        return
    answers = raw.json()
    assert raw.status == 200
    for answer in answers if client.n > 1 else [answers]:
        assert answer["meta_info"]["finish_reason"]["type"] == "abort"


def test_a_thousand_clients_that_cancel_are_nobodys_fault_and_leave_nothing(four: Served) -> None:
    canary = generate(four, "The capital of France is", 16)["text"]
    clients = [drawn(number) for number in range(NUM_CLIENTS)]
    before = outcomes(four)
    faults = four.metric("roost_server_faults_total")
    num_lines = len(four.lines)
    for start in range(0, NUM_CLIENTS, NUM_AT_ONCE):
        wave = clients[start : start + NUM_AT_ONCE]
        bodies = (asking("Far", MANY, stream=c.is_stream, n=c.n, rid=c.rid) for c in wave)
        with all_asked(four, bodies) as raws:
            # One that leaves before its request was read asked for nothing: see the next test.
            num_sent = sum(client.n for client in wave)
            until(partial(has_in_flight, four, num_sent))
            at_once(lambda pair: give_up(four, *pair), zip(wave, raws, strict=True))
        if start == NUM_CLIENTS // 2:
            assert generate(four, "The capital of France is", 16)["text"] == canary
            before["length"] += 1
        until(lambda: four.metric("roost_requests_in_flight") == 0)
    ended = risen(before, outcomes(four))
    num_aborted = sum(c.n for c in clients if c.how == "abort")
    assert ended == {
        "client_cancelled": num_aborted,
        "client_disconnected": sum(c.n for c in clients) - num_aborted,
    }
    assert four.metric("roost_server_faults_total") == faults
    assert samples(four, "roost_late_outputs_total")["unknown"] == 0
    assert four.metric("roost_protocol_violations_total") == 0
    until(lambda: is_idle(four), 5)
    assert generate(four, "The capital of France is", 16)["text"] == canary
    log = "".join(four.lines[num_lines:])
    assert "[error" not in log
    assert "Traceback" not in log
    assert log.count("outcome=client_disconnected status=499") == ended["client_disconnected"]


def test_clients_that_leave_before_they_are_heard_leave_nothing(four: Served) -> None:
    before = outcomes(four)

    def ask_and_leave(number: int) -> None:
        chance = random.Random(number)
        with Raw(four, "/generate", asking("Far", MANY, stream=number % 2 == 0)) as raw:
            time.sleep(chance.choice((0, 0, 0.001, 0.01)))
            raw.leave(by_reset=chance.random() < 0.5)

    at_once(ask_and_leave, range(200), most=20)
    until(lambda: is_idle(four), 10)
    assert set(risen(before, outcomes(four))) <= CLIENT_ENDINGS
    assert "[error" not in four.log()
    assert "Traceback" not in four.log()
    assert generate(four, "The sea", 3)["meta_info"]["completion_tokens"] == 3
