"""What of a prompt was in the cache: told in every answer as a number, and never to strangers."""

import asyncio
import json

import pytest
from tests.unit.api.rig import Client, Json, Rig

TEXT = "so much text that it takes two pages"
# A BOS, and a token a byte; the last is computed again for its logits.
WHOLE = len(TEXT)

GENERATE: Json = {"text": TEXT, "sampling_params": {"max_new_tokens": 2}}
COMPLETION: Json = {"prompt": TEXT, "max_tokens": 2}
CHAT: Json = {"messages": [{"role": "user", "content": TEXT}], "max_tokens": 2}
ROUTES = [("/generate", GENERATE), ("/v1/completions", COMPLETION), ("/v1/chat/completions", CHAT)]


def cached(answer: Json) -> object:
    meta, usage = answer.get("meta_info"), answer.get("usage")
    if isinstance(meta, dict):
        return meta["cached_tokens"]
    assert isinstance(usage, dict)
    return usage["prompt_tokens_details"]["cached_tokens"]


def ask(rig: Rig, path: str, body: Json, **more: object) -> int:
    response = rig.post(path, {**body, **more})
    assert response.status_code == 200, response.text
    found = cached(response.json())
    assert type(found) is int
    return found


@pytest.mark.parametrize(("path", "body"), ROUTES)
def test_another_salt_finds_nothing_and_the_same_salt_finds_all(
    rig: Rig, path: str, body: Json
) -> None:
    assert ask(rig, path, body, cache_salt="alice") == 0
    assert ask(rig, path, body, cache_salt="bob") == 0
    assert ask(rig, path, body) == 0
    assert ask(rig, path, body, extra_key="alice") == 0
    assert ask(rig, path, body, cache_salt="alice", extra_key="x") == 0
    for more in (
        {"cache_salt": "alice"},
        {"cache_salt": "bob"},
        {},
        {"cache_salt": None},
        {"extra_key": "alice"},
        {"cache_salt": "alice", "extra_key": "x"},
    ):
        assert ask(rig, path, body, **more) >= WHOLE


def test_salt_and_key_are_told_apart(rig: Rig) -> None:
    pairs = [("ab", "c"), ("a", "bc"), ("1:a", "b"), ("a", "1:b"), (None, "abc"), ("abc", None)]
    for salt, key in pairs:
        assert ask(rig, "/generate", GENERATE, cache_salt=salt, extra_key=key) == 0
    for salt, key in pairs:
        assert ask(rig, "/generate", GENERATE, cache_salt=salt, extra_key=key) == WHOLE


def test_a_list_of_prompts_may_have_a_list_of_keys(rig: Rig) -> None:
    body: Json = {**GENERATE, "text": [TEXT, TEXT], "extra_key": ["a", "b"]}
    assert [cached(one) for one in rig.post("/generate", body).json()] == [0, 0]
    assert ask(rig, "/generate", GENERATE, extra_key="b") == WHOLE
    assert ask(rig, "/generate", GENERATE, extra_key="c") == 0


@pytest.mark.parametrize("name", ["cache_salt", "extra_key"])
@pytest.mark.parametrize("bad", ["", "x" * 257, 7])
@pytest.mark.parametrize(("path", "body"), ROUTES)
def test_a_name_that_says_nothing_is_refused(
    rig: Rig, path: str, body: Json, name: str, bad: object
) -> None:
    response = rig.post(path, {**body, name: bad})
    assert response.status_code == 400
    assert name in response.text


@pytest.mark.parametrize(("path", "body"), ROUTES)
def test_streams_tell_it_too(rig: Rig, path: str, body: Json) -> None:
    extra: Json = {} if path == "/generate" else {"stream_options": {"include_usage": True}}
    for least in (0, WHOLE):
        frames = rig.stream(path, {**body, **extra})
        found = [cached(frame) for frame in frames if frame.get("usage", frame.get("meta_info"))]
        assert found
        assert all(type(one) is int for one in found)
        last = found[-1]
        assert isinstance(last, int)
        assert last == 0 if least == 0 else last >= least


def test_several_answers_to_one_prompt_compute_it_once(rig: Rig) -> None:
    body = {**GENERATE, "sampling_params": {"max_new_tokens": 2, "n": 4}}
    answers = rig.post("/generate", body).json()
    # They wait for the first one's pages; what is no full page they may compute themselves.
    first, *others = sorted(one["meta_info"]["cached_tokens"] for one in answers)
    assert first == 0
    assert all(32 <= one <= WHOLE for one in others)
    completion = rig.post("/v1/completions", {**COMPLETION, "n": 3}).json()
    assert cached(completion) == WHOLE


def test_one_that_is_aborted_tells_a_number(rig: Rig) -> None:
    rig.parrot.gate.clear()

    async def talk() -> Json:
        client = Client(rig, "/generate", {**GENERATE, "rid": "gone"})
        work = asyncio.create_task(client.run())
        await asyncio.to_thread(rig.parrot.is_asked.wait)
        aborting = asyncio.create_task(rig.client.post("/abort_request", json={"rid": "gone"}))
        await asyncio.sleep(0)
        rig.parrot.gate.set()
        await asyncio.gather(work, aborting)
        answer: Json = json.loads(client.received)
        return answer

    assert type(cached(rig.run(talk()))) is int


def test_a_flush_forgets_and_says_how_much(rig: Rig) -> None:
    ask(rig, "/generate", GENERATE)
    assert ask(rig, "/generate", GENERATE) == WHOLE
    assert rig.post("/flush_cache", {}).status_code == 200
    assert ask(rig, "/generate", GENERATE) == 0


def test_the_rate_of_hits_follows_from_the_counters(rig: Rig) -> None:
    for _ in range(4):
        ask(rig, "/generate", GENERATE)
    lines = dict(line.rsplit(" ", 1) for line in rig.get("/metrics").text.splitlines())
    assert float(lines["roost_prompt_tokens_total"]) == 4 * (WHOLE + 1)
    assert float(lines["roost_cached_tokens_total"]) == 3 * WHOLE
    assert "roost_engine_kv_cached_tokens" in lines


def test_the_load_tells_what_the_cache_keeps(rig: Rig) -> None:
    ask(rig, "/generate", GENERATE)
    # Heard with the next heartbeat.
    for _ in range(500):
        load = rig.get("/v1/loads").json()[0]
        if load["num_cached_tokens"]:
            break
        rig.run(asyncio.sleep(0.01))
    # Two full pages and a part of one; nothing runs.
    assert (load["num_cached_tokens"], load["num_used_tokens"]) == (48, 0)


def test_turns_of_a_session_say_what_they_found(rig: Rig) -> None:
    rig.post("/open_session", {"session_id": "s", "capacity_of_str_len": 1000})
    first = {**GENERATE, "rid": "a", "session_params": {"id": "s"}}
    assert ask(rig, "/generate", first) == 0
    second = {**GENERATE, "text": "and on", "rid": "b", "session_params": {"id": "s", "rid": "a"}}
    # All of the first turn but the token that it ended with, which nobody has computed yet.
    assert ask(rig, "/generate", second) == WHOLE + 1 + 2 - 1
    (session,) = rig.get("/sessions").json()
    assert [turn["num_cached_tokens"] for turn in session["turns"]] == [0, WHOLE + 2]
