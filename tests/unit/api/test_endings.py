"""How a request can end, as its client sees it: by the table, in each dialect."""

import asyncio
import json

import pytest
from tests.unit.api.rig import Client, Json, Rig, frames_of, open_rig

from roost.core.calls import Pause, Resume
from roost.core.outcome import OUTCOMES, Outcome

BODIES: dict[str, Json] = {
    "/generate": {"text": "hi"},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hi"}]},
    "/v1/completions": {"prompt": "hi"},
}
NO_ANSWERS = [
    o for o, e in OUTCOMES.items() if not e.is_answer and o is not Outcome.CLIENT_DISCONNECTED
]


async def held(rig: Rig, path: str, body: Json) -> tuple[Client, "asyncio.Task[None]"]:
    """A request that the engine holds, and that has no token yet."""
    rig.parrot.gate.clear()
    rig.parrot.is_asked.clear()
    client = Client(rig, path, body)
    task = asyncio.create_task(client.run())
    assert await asyncio.to_thread(rig.parrot.is_asked.wait, 10)
    return client, task


async def queued(
    rig: Rig, path: str, body: Json, count: int = 1
) -> tuple[Client, "asyncio.Task[None]"]:
    """A request that waits, as the engine is paused; it has `count` answers."""
    await rig.frontend.call(Pause("in_place"))
    client = Client(rig, path, body)
    task = asyncio.create_task(client.run())
    while rig.scheduler.load().num_waiting < count:  # noqa: ASYNC110  it rings no bell
        await asyncio.sleep(0)
    return client, task


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("outcome", NO_ANSWERS)
def test_an_ending_before_the_first_byte_has_its_status(
    rig: Rig, path: str, stream: bool, outcome: Outcome
) -> None:
    async def scene() -> Client:
        client, task = await held(rig, path, {**BODIES[path], "stream": stream})
        rig.frontend.end_all(outcome, "because")
        await task
        rig.parrot.gate.set()
        return client

    client = rig.run(scene())
    assert client.status == OUTCOMES[outcome].http_status
    error = json.loads(client.received)["error"]
    assert error["message"] == "because"
    if path == "/generate":
        assert error["code"] == client.status


def ended_in_a_stream(rig: Rig, path: str, outcome: Outcome, message: str) -> Client:
    """A client whose request ends from here when it has heard the first two tokens."""
    rig.parrot.closes_after = 2

    async def scene() -> Client:
        client = Client(rig, path, {**BODIES[path], "stream": True})
        task = asyncio.create_task(client.run())
        await client.heard.wait()
        assert await asyncio.to_thread(rig.parrot.is_closed.wait, 10)
        rig.frontend.end_all(outcome, message)
        await task
        rig.parrot.gate.set()
        return client

    return rig.run(scene())


@pytest.mark.parametrize("path", BODIES)
def test_a_fault_after_the_first_byte_is_one_error_frame_and_the_end(rig: Rig, path: str) -> None:
    client = ended_in_a_stream(rig, path, Outcome.ENGINE_FAULT, "because")
    assert client.status == 200
    frames = frames_of(client.received.decode())
    assert len(frames) > 1
    assert [f for f in frames if '"error"' in f] == frames[-1:]
    assert json.loads(frames[-1])["error"]["message"] == "because"


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_while_it_waits_frees_everything(
    rig: Rig, path: str, stream: bool
) -> None:
    async def scene() -> Client:
        client, task = await held(rig, path, {**BODIES[path], "stream": stream})
        client.leaves.set()
        await task
        return client

    client = rig.run(scene())
    assert rig.frontend.live == ()
    assert client.status in (0, 499)
    rig.parrot.gate.set()
    assert rig.post("/generate", {"text": "hi"}).json()["text"] == "Hello"
    assert rig.scheduler.load().num_running == 0
    assert rig.scheduler.load().num_used_pages == 0
    assert 'roost_requests_total{outcome="client_disconnected"} 1.0' in rig.get("/metrics").text


def test_a_client_that_leaves_in_the_middle_of_n_streams_frees_them_all(rig: Rig) -> None:
    rig.parrot.reply = b"x" * 240
    rig.parrot.closes_after = 3

    async def scene() -> None:
        body: Json = {**BODIES["/v1/chat/completions"], "stream": True, "n": 4}
        client, task = await queued(rig, "/v1/chat/completions", body, count=4)
        await rig.frontend.call(Resume())
        await client.heard.wait()
        assert await asyncio.to_thread(rig.parrot.is_closed.wait, 10)
        client.leaves.set()
        await task

    rig.run(scene())
    assert rig.frontend.live == ()
    rig.parrot.reply = b"Hello"
    rig.parrot.gate.set()
    assert rig.post("/generate", {"text": "hi"}).json()["text"] == "Hello"
    assert rig.scheduler.load().num_used_pages == 0


@pytest.mark.parametrize("stream", [False, True])
def test_an_abort_is_a_native_answer_and_an_openai_error(rig: Rig, stream: bool) -> None:
    async def scene(path: str) -> Client:
        client, task = await queued(rig, path, {**BODIES[path], "rid": "x", "stream": stream})
        body = {"rid": "x", "abort_message": "enough of it"}
        response = await rig.client.post("/abort_request", json=body)
        assert response.json() == {"success": True, "message": "1 request ended.", "count": 1}
        await task
        return client

    native = rig.run(scene("/generate"))
    assert native.status == 200
    frames = frames_of(native.received.decode()) if stream else [native.received.decode()]
    assert frames[1:] == (["[DONE]"] if stream else [])
    meta = json.loads(frames[0])["meta_info"]
    assert meta["finish_reason"] == {
        "type": "abort",
        "message": "enough of it",
        "status_code": None,
        "err_type": None,
    }
    for path in ("/v1/chat/completions", "/v1/completions"):
        openai = rig.run(scene(path))
        assert openai.status == 400
        assert json.loads(openai.received) == {
            "error": {
                "message": "enough of it",
                "type": "invalid_request_error",
                "param": None,
                "code": "aborted",
            }
        }


def test_one_of_n_that_is_aborted_leaves_the_others_their_end(rig: Rig) -> None:
    async def scene(path: str, body: Json) -> Client:
        client, task = await queued(rig, path, {**body, "rid": "x", "stream": True}, count=2)
        response = await rig.client.post("/abort_request", json={"rid": "x_0"})
        assert response.json()["count"] == 1
        await rig.frontend.call(Resume())
        await task
        return client

    native = rig.run(scene("/generate", {"text": ["a", "b"]}))
    assert native.status == 200
    last = {f["index"]: f for f in map(json.loads, frames_of(native.received.decode())[:-1])}
    assert last[0]["meta_info"]["finish_reason"]["type"] == "abort"
    assert last[1]["text"] == "Hello"
    chat = rig.run(scene("/v1/chat/completions", {**BODIES["/v1/chat/completions"], "n": 2}))
    assert chat.status == 200
    *frames, error = map(json.loads, frames_of(chat.received.decode()))
    choices = [frame["choices"][0] for frame in frames]
    assert [c["index"] for c in choices if c["finish_reason"] == "stop"] == [1]
    assert error["error"]["code"] == "aborted"
    metrics = rig.get("/metrics").text
    assert 'roost_requests_total{outcome="client_cancelled"} 2' in metrics
    assert 'roost_requests_total{outcome="client_disconnected"} 0' in metrics


def test_abort_is_exact_and_an_unknown_rid_is_harmless(rig: Rig) -> None:
    async def scene() -> Client:
        client, task = await queued(rig, "/generate", {"text": "hi", "rid": "ab"})
        response = await rig.client.post("/abort_request", json={"rid": "a"})
        assert response.status_code == 200
        assert response.json() == {
            "success": True,
            "message": "No request of that id is here; nothing to end.",
            "count": 0,
        }
        await rig.frontend.call(Resume())
        await task
        return client

    client = rig.run(scene())
    assert json.loads(client.received)["text"] == "Hello"


def test_a_rid_in_use_is_refused_and_its_owner_goes_on(rig: Rig) -> None:
    async def scene() -> Client:
        client, task = await held(rig, "/generate", {"text": "hi", "rid": "x"})
        second = await rig.client.post("/generate", json={"text": "hi", "rid": "x"})
        assert second.status_code == 400
        assert second.json()["message"] == "Duplicate request ID detected: x"
        rig.parrot.gate.set()
        await task
        return client

    assert json.loads(rig.run(scene()).received)["text"] == "Hello"
    assert rig.post("/generate", {"text": "hi", "rid": "x"}).json()["text"] == "Hello"


@pytest.mark.parametrize("stream", [False, True])
def test_a_full_queue_is_503_with_retry_after(stream: bool) -> None:
    with open_rig(max_running_requests=1, max_queued_requests=1) as rig:
        rig.run(rig.frontend.call(Pause("in_place")))
        response = rig.post("/generate", {"text": ["a", "b", "c"], "stream": stream})
        assert response.status_code == 503
        assert response.headers["retry-after"] == "1"
        assert response.json()["message"] == "The request queue is full."
        rig.run(rig.frontend.call(Resume()))
        assert rig.post("/generate", {"text": "hi"}).json()["text"] == "Hello"


def test_a_broken_step_is_500_for_those_in_it_and_the_next_is_fine(rig: Rig) -> None:
    rig.parrot.fails = True
    for path, body in BODIES.items():
        for stream in (False, True):
            response = rig.post(path, {**body, "stream": stream})
            assert response.status_code == 500
            assert "Traceback" not in response.text
    rig.parrot.fails = False
    assert rig.post("/generate", {"text": "hi"}).json()["text"] == "Hello"


@pytest.mark.parametrize("stream", [False, True])
def test_in_a_list_each_answer_says_how_it_ended(rig: Rig, stream: bool) -> None:
    rig.parrot.faults_at = frozenset({2})
    response = rig.post("/generate", {"text": ["a", "bb"], "stream": stream})
    assert response.status_code == 200
    answers = response.json() if not stream else map(json.loads, frames_of(response.text))
    last = {answer["index"]: answer for answer in answers}
    reason = last[0]["meta_info"]["finish_reason"]
    assert (reason["type"], reason["status_code"]) == ("abort", 500)
    assert reason["err_type"] == "engine_fault"
    assert last[1]["text"] == "Hello"
    if stream:
        assert last[0]["error"]["message"] == last[0]["message"] == reason["message"]
        assert last[0]["error"]["code"] == 500


@pytest.mark.parametrize("stream", [False, True])
def test_a_list_of_which_nothing_came_has_the_status_of_the_first(rig: Rig, stream: bool) -> None:
    rig.parrot.faults_at = frozenset({2, 3})
    response = rig.post("/generate", {"text": ["a", "bb"], "stream": stream})
    assert response.status_code == 500
    assert response.json()["error"]["code"] == 500


@pytest.mark.parametrize("path", BODIES)
def test_the_last_frame_of_a_native_stream_that_failed_says_it_both_ways(
    rig: Rig, path: str
) -> None:
    """Clients of `/generate` look for either; OpenAI's look for the error alone."""
    client = ended_in_a_stream(rig, path, Outcome.DEADLINE, "Request running timeout reached.")
    last = json.loads(frames_of(client.received.decode())[-1])
    assert last["error"]["message"] == "Request running timeout reached."
    assert last["error"]["type"] == "timeout_error"
    if path == "/generate":
        assert last["error"]["code"] == 504
        assert "Hello".startswith(last["text"])
        assert last["meta_info"]["finish_reason"] == {
            "type": "abort",
            "message": "Request running timeout reached.",
            "status_code": 504,
            "err_type": "deadline",
        }
    else:
        assert set(last) == {"error"}


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("stream", [False, True])
def test_a_calls_own_time_limit_is_504(rig: Rig, path: str, stream: bool) -> None:
    rig.run(rig.frontend.call(Pause("in_place")))
    response = rig.post(path, {**BODIES[path], "timeout": 0.05, "stream": stream})
    assert response.status_code == 504
    assert response.json()["error"]["type"] == "timeout_error"
    rig.run(rig.frontend.call(Resume()))
    assert rig.post(path, {**BODIES[path], "timeout": 30}).status_code == 200


def test_draining_refuses_and_says_to_close(rig: Rig) -> None:
    assert rig.get("/ready").status_code == 200
    rig.frontend.drain()
    assert rig.get("/ready").status_code == 503
    assert rig.get("/health").status_code == 200
    response = rig.post("/v1/completions", {"prompt": "hi"})
    assert response.status_code == 503
    assert response.headers["connection"] == "close"
    assert response.json()["error"]["code"] == "shutting_down"
