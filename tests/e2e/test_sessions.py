"""Sessions on real processes: turns come to any of four HTTP workers, and leave nothing behind."""

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import pytest
from tests.e2e.raw import (
    Json,
    Raw,
    abort,
    asking,
    at_once,
    call,
    get,
    has_in_flight,
    is_idle,
    load,
    paused,
)
from tests.e2e.serving import Served, serving, until

# Never reached.
MANY = 4000
START, MIDDLE, END = "Once upon a time", " there came a", " and the bear said"


@pytest.fixture(scope="module")
def four(demo_model: Path) -> Iterator[Served]:
    with serving(demo_model, "--http-workers", "4") as served:
        served.wait_ready()
        yield served


@pytest.fixture(autouse=True)
def leaves_nothing(four: Served) -> Iterator[None]:
    """Every test closes its sessions; then no page is held, and no fault was found."""
    yield
    until(lambda: get(four, "/sessions")[1] == [] and is_idle(four), 10)
    assert "[error" not in four.log()
    assert "Traceback" not in four.log()


def opened(served: Served, session_id: str | None = None, **more: Json) -> str:
    body = {"capacity_of_str_len": 0, **more}
    if session_id is not None:
        body["session_id"] = session_id
    status, found = call(served, "/open_session", body)
    assert status == 200, found
    assert session_id in (None, found)
    return str(found)


def closed(served: Served, session_id: str) -> None:
    assert call(served, "/close_session", {"session_id": session_id})[0] == 200


def turn_body(
    session_id: str, text: str, num_tokens: int, parent: str | None = None, **more: Json
) -> dict[str, Json]:
    return asking(text, num_tokens, session_params={"id": session_id, "rid": parent}, **more)


def turn(served: Served, *args: Json, **more: Json) -> Json:
    """The answer of a turn that goes well."""
    status, answer = call(served, "/generate", turn_body(*args, **more))
    assert status == 200, answer
    return answer


def num_ids(served: Served, text: str) -> int:
    _, found = call(served, "/tokenize", {"prompt": text})
    return int(found["count"])


def message_of(answer: Json) -> str:
    return str(answer["error"]["message"])


def three_turns(served: Served, session_id: str) -> list[tuple[str, int]]:
    """Text and length of the prompt of each."""
    found = []
    parent = None
    for number, text in enumerate((START, MIDDLE, END)):
        rid = f"{session_id}-{number}"
        answer = turn(served, session_id, text, 8, parent, rid=rid)
        found.append((answer["text"], answer["meta_info"]["prompt_tokens"]))
        parent = rid
    return found


def test_a_turn_goes_on_from_prompt_and_answer_whichever_worker_is_asked(four: Served) -> None:
    session_id = opened(four, "goes-on")
    turns = three_turns(four, session_id)
    whole, lengths = "", 0
    for (text, num_prompt_tokens), new in zip(turns, (START, MIDDLE, END), strict=True):
        whole, lengths = whole + new, lengths + num_ids(four, new)
        assert num_prompt_tokens == lengths
        whole, lengths = whole + text, lengths + 8
    _, (tree,) = get(four, "/sessions")
    assert tree["id"] == session_id
    assert [(t["rid"], t["parent"], t["state"]) for t in tree["turns"]] == [
        ("goes-on-0", None, "done"),
        ("goes-on-1", "goes-on-0", "done"),
        ("goes-on-2", "goes-on-1", "done"),
    ]
    closed(four, session_id)


@pytest.mark.parametrize("by_reset", [False, True])
def test_a_client_that_leaves_in_the_middle_of_a_turn_leaves_the_history_as_it_was(
    four: Served, by_reset: bool
) -> None:
    plain = opened(four, f"plain-{by_reset}")
    undisturbed = three_turns(four, plain)
    session_id = opened(four, f"left-{by_reset}")
    first = turn(four, session_id, START, 8, rid=f"left-{by_reset}-0")
    assert (first["text"], first["meta_info"]["prompt_tokens"]) == undisturbed[0]
    body = turn_body(session_id, " What nobody reads", MANY, f"left-{by_reset}-0", stream=True)
    with Raw(four, "/generate", body) as raw:
        frames = raw.frames()
        for _ in range(3):
            next(frames)
        raw.leave(by_reset=by_reset)
    # At once: the turn that was left may still run when these arrive.
    for number, text in ((1, MIDDLE), (2, END)):
        parent, rid = (f"left-{by_reset}-{n}" for n in (number - 1, number))
        answer = turn(four, session_id, text, 8, parent, rid=rid)
        found = (answer["text"], answer["meta_info"]["prompt_tokens"])
        assert found == undisturbed[number]
    for name in (plain, session_id):
        closed(four, name)


def test_a_turn_that_is_aborted_while_it_waits_does_not_hold_its_session(four: Served) -> None:
    session_id = opened(four)
    first = turn(four, session_id, START, 8, rid="w-0")
    with (
        paused(four),
        Raw(four, "/generate", turn_body(session_id, MIDDLE, 8, "w-0", rid="w-1")) as raw,
    ):
        until(lambda: four.metric("roost_requests_in_flight") == 1)
        # One more that is held, for it goes on from a turn that has not run.
        held_body = turn_body(session_id, END, 8, "w-1", rid="w-2", stream=True)
        with Raw(four, "/generate", held_body) as held:
            until(lambda: num_held(four) == 1)
            assert abort(four, "w-1") == 1
            assert raw.json()["meta_info"]["finish_reason"]["type"] == "abort"
            # What it was to go on from never came to be.
            expected = (400, "Invalid request session id")
            assert (held.status, message_of(held.json())) == expected
    answer = turn(four, session_id, MIDDLE, 8, "w-0", rid="w-3")
    num = first["meta_info"]["prompt_tokens"] + 8 + num_ids(four, MIDDLE)
    assert answer["meta_info"]["prompt_tokens"] == num
    closed(four, session_id)


def test_turns_of_a_session_wait_for_each_other_and_branches_do_not(four: Served) -> None:
    session_id = opened(four)
    bodies = [
        turn_body(session_id, START, 8, rid="root"),
        turn_body(session_id, MIDDLE, 8, "root", rid="left"),
        turn_body(session_id, END, 8, "root", rid="right"),
    ]
    with ExitStack() as stack:
        raws = []
        with paused(four):
            for number, body in enumerate(bodies, start=1):
                raws.append(stack.enter_context(Raw(four, "/generate", body)))
                until(partial(has_in_flight, four, number))
            _, (tree,) = get(four, "/sessions")
            assert [t["state"] for t in tree["turns"]] == ["waiting", "held", "held"]
        answers = [raw.json()["meta_info"]["prompt_tokens"] for raw in raws]
    base = num_ids(four, START)
    expected = [base, base + 8 + num_ids(four, MIDDLE), base + 8 + num_ids(four, END)]
    assert answers == expected
    closed(four, session_id)


def test_two_hundred_opens_at_once_are_all_answered_and_an_id_is_opened_once(four: Served) -> None:
    at_once(lambda n: opened(four, f"many-{n}"), range(200))
    assert len(get(four, "/sessions")[1]) == 200

    def open_same(_: int) -> bool:
        status, found = call(four, "/open_session", {"session_id": "same"})
        text = "Failed to open the session. Check if a session with the same id is still open."
        assert status == 200 or (status, message_of(found)) == (400, text)
        return status == 200

    assert sum(at_once(open_same, range(20))) == 1
    at_once(lambda n: closed(four, f"many-{n}"), range(200))
    closed(four, "same")
    status, found = call(four, "/close_session", {"session_id": "same"})
    assert status == 400
    assert "same" in message_of(found)


def test_a_session_that_is_closed_while_it_answers_ends_well(four: Served) -> None:
    session_id = opened(four, "closed-early")
    with (
        Raw(four, "/generate", turn_body(session_id, START, 60, rid="c-0", stream=True)) as runs,
        begun(runs) as frames,
        Raw(four, "/generate", turn_body(session_id, MIDDLE, 8, "c-0", rid="c-1")) as waits,
    ):
        until(lambda: num_held(four) == 1)
        closed(four, session_id)
        text = f"Invalid request: close was requested for session {session_id}"
        assert (waits.status, message_of(waits.json())) == (400, text)
        *_, last, end = frames
        assert '"type":"length"' in last
        assert end == "[DONE]"
    until(lambda: load(four)["num_used_tokens"] == 0, 1.5)
    status, found = call(four, "/generate", turn_body(session_id, "x", 1))
    assert status == 400
    assert message_of(found) == f"Invalid request: session id {session_id} does not exist"


@contextmanager
def begun(raw: Raw) -> Iterator[Iterator[str]]:
    """The frames of a stream, of which the first has come."""
    frames = raw.frames()
    next(frames)
    yield frames


def num_held(served: Served) -> int:
    _, trees = get(served, "/sessions")
    return sum(t["state"] == "held" for tree in trees for t in tree["turns"])


def test_a_hundred_rounds_of_turns_aborts_and_closes_leave_nothing(four: Served) -> None:
    def cycle(number: int) -> None:
        session_id = opened(four)
        rid = f"cycle-{number}"
        turn(four, session_id, START, 3, rid=rid)
        body = turn_body(session_id, MIDDLE, MANY, rid, rid=f"{rid}-a", stream=number % 2 == 0)
        with Raw(four, "/generate", body) as raw:
            if number % 2 == 0:
                next(raw.frames())
            else:
                until(lambda: abort(four, f"{rid}-a") == 1)
            if number % 4 == 0:
                assert abort(four, f"{rid}-a") == 1
        closed(four, session_id)

    at_once(cycle, range(100), most=8)
    until(lambda: is_idle(four), 5)
    assert get(four, "/sessions")[1] == []


def chat_body(session_id: str, text: str, parent: str | None, rid: str) -> Json:
    return {
        "messages": [{"role": "user", "content": text}],
        "max_tokens": 12,
        "temperature": 0,
        "session_params": {"id": session_id, "rid": parent},
        "rid": rid,
    }


def test_a_chat_goes_on_in_a_session_as_if_all_of_it_had_been_sent(four: Served) -> None:
    session_id = opened(four)
    first_text, second_text = "Say hello to the sea.", "And to the sky?"
    status, first = call(
        four, "/v1/chat/completions", chat_body(session_id, first_text, None, "k-0")
    )
    assert status == 200
    status, second = call(
        four, "/v1/chat/completions", chat_body(session_id, second_text, "k-0", "k-1")
    )
    assert status == 200
    messages = [
        {"role": "user", "content": first_text},
        {"role": "assistant", "content": first["choices"][0]["message"]["content"]},
        {"role": "user", "content": second_text},
    ]
    whole_body = {"messages": messages, "max_tokens": 12, "temperature": 0}
    status, whole = call(four, "/v1/chat/completions", whole_body)
    assert status == 200
    # The turn finds all that was computed: the last prompt, and its answer but for one token.
    known = first["usage"]["total_tokens"] - 1
    assert second["usage"].pop("prompt_tokens_details") == {"cached_tokens": known}
    num_prompt_tokens = second["usage"]["prompt_tokens"]
    assert whole["usage"].pop("prompt_tokens_details") == {"cached_tokens": num_prompt_tokens - 1}
    assert second["usage"] == whole["usage"]
    assert second["choices"][0]["message"] == whole["choices"][0]["message"]
    status, found = call(four, "/v1/chat/completions", chat_body("nobody", first_text, None, "k-2"))
    assert status == 400
    assert message_of(found) == "Invalid request: session id nobody does not exist"
    closed(four, session_id)


@pytest.mark.parametrize(
    ("path", "body", "named"),
    [
        ("/generate", {"text": "x", "session_id": "a", "session_params": {"id": "b"}}, "session"),
        ("/generate", {"text": "x", "session_params": {"id": "b", "branch": 1}}, "branch"),
        ("/generate", {"text": "x", "session_params": {"rid": "b"}}, "id"),
        ("/open_session", {"capacity_of_str_len": 0, "streaming": True}, "streaming"),
        ("/open_session", {"capacity_of_str_len": 0, "colour": "red"}, "colour"),
        ("/open_session", {"session_id": ""}, "session_id"),
        ("/close_session", {}, "session_id"),
    ],
)
def test_what_a_session_cannot_do_is_refused_by_name(
    four: Served, path: str, body: Json, named: str
) -> None:
    status, found = call(four, path, body)
    assert status == 400
    assert named in message_of(found)


def test_an_idle_session_expires_and_is_then_unknown(four: Served) -> None:
    session_id = opened(four, "short", timeout=0.3)
    began_s = time.monotonic()
    until(lambda: get(four, "/sessions")[1] == [])
    assert 0.2 < time.monotonic() - began_s < 2
    with Raw(four, "/generate", turn_body(session_id, "x", 1)) as raw:
        assert raw.status == 400
        assert raw.answered_s() < 1
        assert message_of(raw.json()) == "Invalid request: session id short does not exist"


def test_an_unknown_turn_is_refused_and_the_session_goes_on(four: Served) -> None:
    session_id = opened(four)
    status, found = call(four, "/generate", turn_body(session_id, "x", 1, "nobody"))
    assert (status, message_of(found)) == (400, "Invalid request session id")
    assert turn(four, session_id, START, 2)["meta_info"]["completion_tokens"] == 2
    closed(four, session_id)
