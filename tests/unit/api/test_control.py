"""Calls on the whole server: what each takes, and what it says that it did."""

import asyncio
import json

import pytest
from tests.unit.api.rig import Client, Json, Rig


async def until_waiting(rig: Rig, count: int) -> None:
    while rig.scheduler.load().num_waiting < count:  # noqa: ASYNC110  it rings no bell
        await asyncio.sleep(0)


def test_abort_all_ends_everything_and_says_how_many(rig: Rig) -> None:
    async def scene() -> list[Client]:
        await rig.client.post("/pause_generation", json={"mode": "in_place"})
        clients = [Client(rig, "/generate", {"text": "hi"}) for _ in range(3)]
        tasks = [asyncio.create_task(client.run()) for client in clients]
        await until_waiting(rig, 3)
        response = await rig.client.post("/abort_request", json={"abort_all": True})
        assert response.json() == {"success": True, "message": "3 requests ended.", "count": 3}
        await asyncio.gather(*tasks)
        return clients

    for client in rig.run(scene()):
        assert client.status == 200
        meta = json.loads(client.received)["meta_info"]
        assert meta["finish_reason"]["message"] == "Abort in waiting queue"
    again = rig.post("/abort_request", {"abort_all": True, "rid": ""}).json()
    assert again["message"] == "No request is here; nothing to end."
    assert again["count"] == 0


def test_a_name_ends_every_answer_of_its_call(rig: Rig) -> None:
    async def scene() -> Client:
        await rig.client.post("/pause_generation", json={"mode": "in_place"})
        client = Client(rig, "/generate", {"text": ["a", "b"], "rid": "g"})
        task = asyncio.create_task(client.run())
        await until_waiting(rig, 2)
        response = await rig.client.post("/abort_request", json={"rid": "g"})
        assert response.json()["count"] == 2
        await task
        return client

    answers = json.loads(rig.run(scene()).received)
    assert [a["meta_info"]["finish_reason"]["type"] for a in answers] == ["abort", "abort"]


@pytest.mark.parametrize("mode", ["retract", "in_place"])
def test_what_comes_in_while_paused_waits_and_goes_on_afterwards(rig: Rig, mode: str) -> None:
    async def scene() -> Client:
        assert (await rig.client.post("/pause_generation", json={"mode": mode})).status_code == 200
        client = Client(rig, "/generate", {"text": "hi"})
        task = asyncio.create_task(client.run())
        await until_waiting(rig, 1)
        assert not client.heard.is_set()
        assert (await rig.client.post("/continue_generation")).status_code == 200
        await task
        return client

    assert json.loads(rig.run(scene()).received)["text"] == "Hello"


def test_to_pause_is_to_abort_if_nothing_else_is_said(rig: Rig) -> None:
    async def scene() -> Client:
        await rig.client.post("/pause_generation", json={"mode": "in_place"})
        client = Client(rig, "/generate", {"text": "hi"})
        task = asyncio.create_task(client.run())
        await until_waiting(rig, 1)
        paused = await rig.client.post("/pause_generation")
        assert paused.json()["success"] is True
        assert paused.json()["count"] == 1
        await task
        assert (await rig.client.post("/continue_generation", json={})).status_code == 200
        return client

    reason = json.loads(rig.run(scene()).received)["meta_info"]["finish_reason"]
    assert reason["type"] == "abort"
    assert rig.post("/generate", {"text": "hi"}).json()["text"] == "Hello"


def test_a_flush_waits_until_nothing_lives_if_told_to(rig: Rig) -> None:
    async def scene() -> None:
        await rig.client.post("/pause_generation", json={"mode": "in_place"})
        task = asyncio.create_task(Client(rig, "/generate", {"text": "hi"}).run())
        await until_waiting(rig, 1)
        for method in ("GET", "POST"):
            done = await rig.client.request(method, "/flush_cache")
            assert done.json()["message"] == "0 tokens were forgotten."
            refused = await rig.client.request(method, "/flush_cache?timeout=0")
            assert refused.status_code == 400
            assert "waiting" in refused.json()["message"]
        waits = asyncio.create_task(rig.client.post("/flush_cache?timeout=20"))
        while True:
            second = await rig.client.get("/flush_cache", params={"timeout": "0"})
            if "Another flush" in second.json()["message"]:
                break
        assert second.status_code == 400
        await rig.client.post("/continue_generation")
        assert (await waits).status_code == 200
        await task

    rig.run(scene())
    for timeout in ("", "?timeout=0", "?timeout=2.5"):
        done = rig.get(f"/flush_cache{timeout}")
        assert (done.status_code, done.json()["success"]) == (200, True)


def test_the_log_level_is_set_while_it_runs(rig: Rig) -> None:
    done = rig.post("/configure_logging", {"log_level": "warning"})
    assert done.status_code == 200
    assert done.json() == {
        "success": True,
        "message": "Every process logs from warning on.",
        "count": 0,
    }
    # The engine's process, and this one.
    assert rig.log_levels == ["warning", "warning"]


ROWS: list[tuple[str, Json, str | None, str]] = [
    ("/abort_request", {}, "rid", "Give rid, or abort_all."),
    ("/abort_request", {"rid": ""}, "rid", "1 to 256"),
    ("/abort_request", {"rid": None}, "rid", "Give rid, or abort_all."),
    ("/abort_request", {"rid": "x" * 257}, "rid", "1 to 256"),
    ("/abort_request", {"rid": 3}, "rid", "got int"),
    ("/abort_request", {"rid": ["x"]}, "rid", "got array"),
    ("/abort_request", {"rid": "x", "abort_all": True}, "rid", "not both"),
    ("/abort_request", {"abort_all": "yes"}, "abort_all", "got str"),
    ("/abort_request", {"rid": "x", "abort_message": 3}, "abort_message", "got int"),
    ("/abort_request", {"rid": "x", "abort_message": "y" * 1001}, "abort_message", "1000"),
    ("/abort_request", {"rids": "x"}, "rids", "Did you mean rid?"),
    ("/pause_generation", {"mode": "stop"}, "mode", "stop"),
    ("/pause_generation", {"mode": None}, "mode", "null"),
    ("/pause_generation", {"mod": "abort"}, "mod", "Did you mean mode?"),
    ("/continue_generation", {"mode": "abort"}, "mode", "Unknown field"),
    ("/flush_cache", {"timeout": -1}, "timeout", "at least 0"),
    ("/flush_cache", {"timeout": "soon"}, "timeout", "got str"),
    ("/flush_cache", {"timeuot": 1}, "timeuot", "Did you mean timeout?"),
    ("/configure_logging", {}, "log_level", "required field log_level"),
    ("/configure_logging", {"log_level": None}, "log_level", "null"),
    ("/configure_logging", {"log_level": "loud"}, "log_level", "loud"),
    (
        "/configure_logging",
        {"log_level": "info", "log_requests": True},
        "log_requests",
        "not supported",
    ),
]


@pytest.mark.parametrize(("path", "body", "param", "words"), ROWS)
def test_what_a_call_cannot_take_is_named(
    rig: Rig, path: str, body: Json, param: str | None, words: str
) -> None:
    response = rig.post(path, body)
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert words in error["message"], error
    assert error["param"] == param


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("timeout=soon", "Expected float"),
        ("timeout=-1", "at least 0"),
        ("timeout=inf", "at least 0"),
        ("timeout=nan", "at least 0"),
        ("timeout=", "Expected float"),
        ("timeout=1&timeout=2", "2 times"),
        ("tmeout=1", "Did you mean timeout?"),
    ],
)
def test_a_query_is_checked_like_a_body(rig: Rig, query: str, words: str) -> None:
    response = rig.get(f"/flush_cache?{query}")
    assert response.status_code == 400, response.text
    assert words in response.json()["message"]


def test_fields_are_in_the_body_or_in_the_query(rig: Rig) -> None:
    response = rig.post("/flush_cache?timeout=0", {"timeout": 0})
    assert response.status_code == 400
    assert "not in both" in response.json()["message"]


def test_what_sglangs_clients_add_does_no_harm(rig: Rig) -> None:
    body = {"rid": "x", "http_worker_ipc": None, "finished_reason": None, "abort_message": None}
    assert rig.post("/abort_request", body).json()["count"] == 0
    assert rig.post("/continue_generation", {"torch_empty_cache": True}).status_code == 200
