"""Sessions over HTTP, in SGLang's words."""

import asyncio
import json

import pytest
from tests.unit.api.rig import BOS, END_OF_TURN, EOS, Client, Json, Rig, open_rig

from roost.core.calls import Pause, Resume

HELLO = [*b"Hello", EOS]


def opened(rig: Rig, session_id: str = "s") -> None:
    response = rig.post("/open_session", {"session_id": session_id, "capacity_of_str_len": 1000})
    assert (response.status_code, response.json()) == (200, session_id)


def turn(rig: Rig, text: str, name: str, **params: object) -> Json:
    """The answer of a turn that went well, by the native API."""
    body = {
        "text": text,
        "rid": name,
        "return_prompt_token_ids": True,
        "session_params": {"id": "s", **params},
    }
    response = rig.post("/generate", body)
    assert response.status_code == 200, response.text
    answer: Json = response.json()
    return answer


def prompt_of(answer: Json) -> list[int]:
    ids = answer["prompt_token_ids"]
    assert isinstance(ids, list)
    meta = answer["meta_info"]
    assert isinstance(meta, dict)
    assert meta["prompt_tokens"] == len(ids)
    return ids


def test_a_session_is_opened_with_a_body_or_a_query_and_its_id_comes_back(rig: Rig) -> None:
    drawn = rig.post("/open_session", {"capacity_of_str_len": 1000}).json()
    assert isinstance(drawn, str)
    assert len(drawn) == 32
    assert rig.get("/open_session?session_id=a&capacity_of_str_len=5&timeout=9").json() == "a"
    assert rig.get_with("/open_session", {"session_id": "b", "timeout": 2}).json() == "b"
    assert [s["id"] for s in rig.get("/sessions").json()] == [drawn, "a", "b"]
    for close in (
        rig.get("/close_session?session_id=a"),
        rig.get_with("/close_session", {"session_id": "b"}),
        rig.post("/close_session", {"session_id": drawn}),
    ):
        assert close.status_code == 200
        assert close.json() == {"success": True, "message": "The session is closed."}
    assert rig.get("/sessions").json() == []


def test_a_turn_goes_on_from_any_earlier_one(rig: Rig) -> None:
    opened(rig)
    first = [BOS, *b"ab"]
    assert prompt_of(turn(rig, "ab", "1")) == first
    assert prompt_of(turn(rig, "cd", "2", rid="1")) == [*first, *HELLO, *b"cd"]
    assert prompt_of(turn(rig, "e", "3", rid="1", offset=2)) == [BOS, ord("a"), ord("e")]
    assert prompt_of(turn(rig, "e", "4", rid="1", offset=-1)) == [*first, *b"Hello", ord("e")]
    assert prompt_of(turn(rig, "e", "5", rid="1", drop_previous_output=True)) == [*first, ord("e")]
    assert prompt_of(turn(rig, "x", "6", rid=None, offset=None, replace=None)) == [BOS, ord("x")]
    listed = rig.get("/sessions").json()
    assert [t["rid"] for t in listed[0]["turns"]] == ["1", "2", "3", "4", "5", "6"]
    turn(rig, "y", "7", rid="1", replace=True)
    assert [t["rid"] for t in rig.get("/sessions").json()[0]["turns"]] == ["1", "7", "6"]
    turn(rig, "z", "8", replace=True)
    assert [t["rid"] for t in rig.get("/sessions").json()[0]["turns"]] == ["8"]


def test_usage_and_echo_are_of_the_whole_prompt(rig: Rig) -> None:
    opened(rig)
    turn(rig, "ab", "1")
    params = {"session_params": {"id": "s", "rid": "1"}}
    body: Json = {"prompt": "cd", "echo": True, "logprobs": 0, **params}
    whole = rig.post("/v1/completions", body).json()
    assert whole["usage"]["prompt_tokens"] == 3 + len(HELLO) + 2
    (choice,) = whole["choices"]
    assert choice["text"] == "abHellocdHello"
    assert len(choice["logprobs"]["tokens"]) == 3 + len(HELLO) + 2 + len(HELLO)
    frames = rig.stream("/v1/completions", {**body, "stream_options": {"include_usage": True}})
    texts = [c["text"] for f in frames for c in f["choices"]]  # type: ignore[attr-defined]
    assert "".join(texts) == "abHellocdHello"
    assert frames[-1]["usage"] == whole["usage"]


@pytest.mark.parametrize("stream", [False, True])
def test_a_chat_goes_on_in_its_session(rig: Rig, stream: bool) -> None:
    rig.parrot.reply = b"Hello" + bytes([])
    opened(rig)
    path = "/v1/chat/completions"
    ask = {"messages": [{"role": "user", "content": "hi"}], "rid": "1"}
    rig.post(path, {**ask, "session_params": {"id": "s"}})
    more: Json = {
        "messages": [{"role": "user", "content": "you"}],
        "session_params": {"id": "s", "rid": "1"},
    }
    first = len("[user]hi<|im_end|>[assistant]") - len("<|im_end|>") + 1 + 1
    new = 1 + len("[user]you[assistant]") + 1
    expected = first + len(HELLO) + new
    if stream:
        frames = rig.stream(path, {**more, "stream_options": {"include_usage": True}})
        usage = frames[-1]["usage"]
    else:
        usage = rig.post(path, more).json()["usage"]
    assert isinstance(usage, dict)
    assert usage["prompt_tokens"] == expected
    assert END_OF_TURN not in HELLO


def test_a_list_is_a_turn_for_each_prompt(rig: Rig) -> None:
    opened(rig)
    body = {"text": ["a", "b"], "rid": "g", "session_params": {"id": "s"}}
    assert len(rig.post("/generate", body).json()) == 2
    assert [t["rid"] for t in rig.get("/sessions").json()[0]["turns"]] == ["g_0", "g_1"]


BODIES: dict[str, Json] = {
    "/generate": {"text": "hi"},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hi"}]},
    "/v1/completions": {"prompt": "hi"},
}


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("stream", [False, True])
def test_what_a_session_cannot_do_is_400_in_the_words_that_clients_match(
    rig: Rig, path: str, stream: bool
) -> None:
    def refusal(**params: object) -> str:
        body = {**BODIES[path], "stream": stream, "session_params": params}
        response = rig.post(path, body)
        assert response.status_code == 400
        return str(response.json()["error"]["message"])

    assert refusal(id="s") == "Invalid request: session id s does not exist"
    opened(rig)
    assert refusal(id="s", rid="nobody") == "Invalid request session id"
    turn(rig, "a", "1")
    assert "offset" in refusal(id="s", rid="1", offset=99)
    rig.post("/close_session", {"session_id": "s"})
    assert refusal(id="s") == "Invalid request: session id s does not exist"
    assert rig.frontend.live == ()


def test_a_session_that_closes_lets_who_runs_finish_and_takes_nobody_else(rig: Rig) -> None:
    opened(rig)

    async def scene() -> tuple[Client, Client]:
        rig.parrot.gate.clear()
        rig.parrot.is_asked.clear()
        runs = Client(rig, "/generate", {"text": "a", "rid": "1", "session_params": {"id": "s"}})
        first = asyncio.create_task(runs.run())
        assert await asyncio.to_thread(rig.parrot.is_asked.wait, 10)
        waits = Client(rig, "/generate", {"text": "b", "session_params": {"id": "s", "rid": "1"}})
        second = asyncio.create_task(waits.run())
        closing = asyncio.create_task(rig.client.post("/close_session", json={"session_id": "s"}))
        rig.parrot.gate.set()
        await asyncio.gather(first, second)
        assert (await closing).status_code == 200
        return runs, waits

    runs, _ = rig.run(scene())
    assert json.loads(runs.received)["text"] == "Hello"
    assert rig.get("/sessions").json() == []
    assert rig.scheduler.load().num_used_pages == 0


def test_a_closing_session_says_so_to_those_that_wait(rig: Rig) -> None:
    opened(rig)

    async def scene() -> Client:
        await rig.frontend.call(Pause("in_place"))
        body: Json = {"text": "b", "session_params": {"id": "s"}, "stream": True}
        waits = Client(rig, "/generate", body)
        task = asyncio.create_task(waits.run())
        while rig.scheduler.load().num_waiting < 1:  # noqa: ASYNC110  it rings no bell
            await asyncio.sleep(0)
        closed = await rig.client.post("/close_session", json={"session_id": "s"})
        assert closed.status_code == 200
        await task
        await rig.frontend.call(Resume())
        return waits

    waits = rig.run(scene())
    assert waits.status == 400
    assert json.loads(waits.received)["message"] == (
        "Invalid request: close was requested for session s"
    )


def test_an_aborted_turn_leaves_the_session_as_it_was(rig: Rig) -> None:
    opened(rig)
    turn(rig, "a", "1")

    async def scene() -> None:
        await rig.frontend.call(Pause("in_place"))
        body: Json = {"text": "b", "rid": "2", "session_params": {"id": "s", "rid": "1"}}
        client = Client(rig, "/generate", body)
        task = asyncio.create_task(client.run())
        while rig.scheduler.load().num_waiting < 1:  # noqa: ASYNC110  it rings no bell
            await asyncio.sleep(0)
        await rig.client.post("/abort_request", json={"rid": "2"})
        await task
        await rig.frontend.call(Resume())

    rig.run(scene())
    assert [t["rid"] for t in rig.get("/sessions").json()[0]["turns"]] == ["1"]
    assert prompt_of(turn(rig, "b", "2", rid="1")) == [BOS, ord("a"), *HELLO, ord("b")]


def test_opening_twice_and_closing_what_is_not_there_are_400(rig: Rig) -> None:
    opened(rig)
    again = rig.post("/open_session", {"session_id": "s"})
    assert again.status_code == 400
    assert again.json()["message"] == (
        "Failed to open the session. Check if a session with the same id is still open."
    )
    assert rig.post("/close_session", {"session_id": "s"}).status_code == 200
    gone = rig.post("/close_session", {"session_id": "s"})
    assert gone.status_code == 400
    assert gone.json()["message"] == "Invalid request: session id s does not exist"


def test_there_are_only_so_many_sessions() -> None:
    with open_rig(max_sessions=1) as rig:
        opened(rig)
        refused = rig.post("/open_session", {"session_id": "t"})
        assert refused.status_code == 503
        assert refused.headers["retry-after"] == "1"
        assert refused.json()["message"] == "max_sessions=1: no more sessions may be open."


def test_a_capacity_bounds_the_whole_prompt(rig: Rig) -> None:
    rig.post("/open_session", {"session_id": "s", "capacity_of_str_len": 8})
    turn(rig, "abc", "1")
    body = {"text": "d", "session_params": {"id": "s", "rid": "1"}}
    refused = rig.post("/generate", body)
    assert refused.status_code == 400
    assert "8" in refused.json()["message"]


ROWS: list[tuple[str, Json, str | None, str]] = [
    ("/open_session", {"session_id": ""}, "session_id", "1 to 256"),
    ("/open_session", {"session_id": "x" * 257}, "session_id", "1 to 256"),
    ("/open_session", {"session_id": 3}, "session_id", "got int"),
    ("/open_session", {"capacity_of_str_len": -1}, "capacity_of_str_len", ">= 0"),
    ("/open_session", {"capacity_of_str_len": "9"}, "capacity_of_str_len", "got str"),
    ("/open_session", {"capacity_of_str_len": 10**40}, "capacity_of_str_len", "64 bits"),
    ("/open_session", {"timeout": 0}, "timeout", "greater than 0"),
    ("/open_session", {"timeout": "1"}, "timeout", "got str"),
    ("/open_session", {"streaming": True}, "streaming", "not supported"),
    ("/open_session", {"capacity": 9}, "capacity", "Unknown field capacity"),
    ("/close_session", {}, "session_id", "required field session_id"),
    ("/close_session", {"session_id": ""}, "session_id", "1 to 256"),
    ("/close_session", {"session_id": None}, "session_id", "got null"),
    ("/close_session", {"session_id": "x", "force": True}, "force", "Unknown field force"),
]


@pytest.mark.parametrize(("path", "body", "param", "words"), ROWS)
def test_what_a_session_call_cannot_take_is_named(
    rig: Rig, path: str, body: Json, param: str | None, words: str
) -> None:
    for response in (rig.post(path, body), rig.get_with(path, body)):
        assert response.status_code == 400, response.text
        error = response.json()["error"]
        assert words in error["message"], error
        assert error["param"] == param
    assert rig.get("/sessions").json() == []


def test_fields_that_ask_for_nothing_are_fine(rig: Rig) -> None:
    body = {"session_id": "s", "streaming": False, "timeout": None, "capacity_of_str_len": None}
    assert rig.post("/open_session", body).json() == "s"
    assert rig.get("/open_session?session_id=t&streaming=false").json() == "t"


def test_one_session_may_be_named_twice_if_it_is_the_same(rig: Rig) -> None:
    opened(rig)
    body = {"text": "hi", "session_id": "s", "session_params": {"id": "s"}}
    assert rig.post("/generate", body).json()["text"] == "Hello"
