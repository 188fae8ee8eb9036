"""`/v1/chat/completions` as OpenAI's clients know it."""

import pytest
from tests.unit.api.rig import EOS, Json, Rig

PATH = "/v1/chat/completions"
HI: Json = {"messages": [{"role": "user", "content": "hi"}]}


def only(chunk: Json) -> Json:
    choices = chunk["choices"]
    assert isinstance(choices, list)
    (choice,) = choices
    assert isinstance(choice, dict)
    return choice


def test_an_answer_has_openais_shape(rig: Rig) -> None:
    answer = rig.post(PATH, HI).json()
    assert answer["object"] == "chat.completion"
    assert answer["model"] == "demo"
    assert only(answer) == {
        "index": 0,
        "message": {"role": "assistant", "content": "Hello", "refusal": None},
        "logprobs": None,
        "finish_reason": "stop",
        "matched_stop": EOS,
    }
    assert answer["usage"] == {
        "prompt_tokens": 21,
        "completion_tokens": 6,
        "total_tokens": 27,
        "prompt_tokens_details": {"cached_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": 0},
    }


def test_a_stream_is_role_then_text_then_the_reason_then_usage(rig: Rig) -> None:
    chunks = rig.stream(PATH, {**HI, "stream_options": {"include_usage": True}})
    assert only(chunks[0])["delta"] == {"role": "assistant"}
    texts = [only(chunk)["delta"] for chunk in chunks[1:-2]]
    assert "".join(delta["content"] for delta in texts) == "Hello"  # type: ignore[index]
    assert all(set(delta) == {"content"} for delta in texts)  # type: ignore[call-overload]
    reasons = [only(chunk)["finish_reason"] for chunk in chunks[:-1]]
    assert reasons == [None] * (len(reasons) - 1) + ["stop"]
    assert only(chunks[-2])["delta"] == {}
    assert chunks[-1]["choices"] == []
    whole = rig.post(PATH, HI).json()["usage"]
    # What the first computed of the prompt, the second finds: all but its last token.
    assert whole.pop("prompt_tokens_details") == {"cached_tokens": 20}
    assert chunks[-1]["usage"] == {**whole, "prompt_tokens_details": {"cached_tokens": 0}}
    assert all("usage" not in chunk for chunk in chunks[:-1])
    assert len({str(chunk["id"]) for chunk in chunks}) == 1


def test_without_include_usage_there_is_none(rig: Rig) -> None:
    chunks = rig.stream(PATH, HI)
    assert all(chunk["choices"] for chunk in chunks)
    assert all("usage" not in chunk for chunk in chunks)


def test_each_index_of_n_begins_once_and_ends_once(rig: Rig) -> None:
    body: Json = {**HI, "n": 3, "max_tokens": 2}
    whole = rig.post(PATH, body).json()
    assert [c["index"] for c in whole["choices"]] == [0, 1, 2]
    assert whole["usage"]["prompt_tokens"] == 21
    assert whole["usage"]["completion_tokens"] == 6
    choices = [only(chunk) for chunk in rig.stream(PATH, body)]
    for index in range(3):
        own = [c for c in choices if c["index"] == index]
        assert own[0]["delta"] == {"role": "assistant"}
        assert [c["finish_reason"] for c in own] == [None] * (len(own) - 1) + ["length"]


@pytest.mark.parametrize(
    "parts",
    [[{"type": "text", "text": "a b"}], [{"type": "text", "text": t} for t in ("a", "b")]],
)
def test_parts_of_text_are_one_text_joined_by_spaces(rig: Rig, parts: object) -> None:
    def prompt(content: object) -> object:
        messages = [{"role": "user", "content": content}]
        return rig.post("/v1/tokenize", {"messages": messages}).json()["prompt"]

    assert prompt(parts) == prompt("a b")


def test_a_developer_is_a_system(rig: Rig) -> None:
    def prompt(role: str) -> object:
        messages = [{"role": role, "content": "be brief"}, {"role": "user", "content": "hi"}]
        return rig.post("/v1/tokenize", {"messages": messages}).json()["prompt"]

    assert prompt("developer") == prompt("system")


def test_content_may_be_null_or_absent(rig: Rig) -> None:
    for silent in ({"role": "assistant", "content": None}, {"role": "assistant"}):
        body = {"messages": [{"role": "user", "content": "hi"}, silent]}
        assert rig.post(PATH, body).status_code == 200


def test_the_last_message_can_be_continued(rig: Rig) -> None:
    body: Json = {
        "messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "He"}],
        "continue_final_message": True,
    }
    found = rig.post("/v1/tokenize", body).json()
    assert found["prompt"] == "[user]hi<|im_end|>[assistant]He"
    assert rig.post(PATH, body).json()["usage"]["prompt_tokens"] == found["count"]


def test_max_tokens_is_a_maximum_and_gives_way_to_the_context(rig: Rig) -> None:
    rig.parrot.reply = b"x" * 1000
    for asked in (None, 100_000):
        answer = rig.post(PATH, {**HI, "max_completion_tokens": asked}).json()
        assert only(answer)["finish_reason"] == "length"
        assert answer["usage"]["total_tokens"] == 256
    short = rig.post(PATH, {**HI, "max_tokens": 5, "max_completion_tokens": 3}).json()
    assert short["usage"]["completion_tokens"] == 3


def test_logprobs_have_text_bytes_and_k_alternatives(rig: Rig) -> None:
    rig.parrot.reply = "é".encode()
    body: Json = {**HI, "logprobs": True, "top_logprobs": 3}
    entries = only(rig.post(PATH, body).json())["logprobs"]["content"]  # type: ignore[index]
    first = entries[0]
    assert (first["token"], first["bytes"], first["logprob"]) == ("\ufffd", [0xC3], -0.5)
    assert [len(e["top_logprobs"]) for e in entries] == [3, 3, 3]
    assert first["top_logprobs"][1] == {"token": "B", "bytes": [66], "logprob": -2.0}
    streamed = [
        entry
        for chunk in rig.stream(PATH, body)
        if only(chunk)["logprobs"]
        for entry in only(chunk)["logprobs"]["content"]  # type: ignore[index]
    ]
    assert streamed == entries


def test_logit_bias_forces_a_token(rig: Rig) -> None:
    body: Json = {**HI, "logit_bias": {"90": 100}, "max_tokens": 3}
    message = only(rig.post(PATH, body).json())["message"]
    assert message["content"] == "ZZZ"  # type: ignore[index]


def test_stops_end_it_and_are_named(rig: Rig) -> None:
    answer = rig.post(PATH, {**HI, "stop": ["lo"]}).json()
    assert (only(answer)["finish_reason"], only(answer)["matched_stop"]) == ("stop", "lo")
    rig.parrot.reply = bytes([72, 73])
    other = rig.post(PATH, {**HI, "stop_token_ids": [73]}).json()
    assert only(other)["matched_stop"] == 73


def test_ignore_eos_goes_on_to_the_maximum(rig: Rig) -> None:
    answer = rig.post(PATH, {**HI, "ignore_eos": True, "max_tokens": 12}).json()
    assert answer["usage"]["completion_tokens"] == 12


def test_the_id_is_the_rid_and_is_in_the_headers(rig: Rig) -> None:
    response = rig.post(PATH, {**HI, "rid": "mine"})
    assert response.json()["id"] == response.headers["x-request-id"] == "mine"
    foreign = rig.post(PATH, {**HI, "rid": "é👋"})
    assert foreign.json()["id"] == "é👋"
    assert "x-request-id" not in foreign.headers
    drawn = rig.post(PATH, HI)
    assert drawn.json()["id"].startswith("chatcmpl-")


def test_plain_values_of_what_is_not_built_are_accepted(rig: Rig) -> None:
    body: Json = {
        **HI,
        "response_format": {"type": "text"},
        "tools": None,
        "tool_choice": "none",
        "user": "me",
        "store": False,
        "metadata": {"a": "b"},
        "modalities": ["text"],
    }
    assert rig.post(PATH, body).status_code == 200


def test_the_template_refuses_in_its_own_words(rig: Rig) -> None:
    response = rig.post(PATH, {"messages": [{"role": "user", "content": "refuse me"}]})
    assert response.status_code == 400
    assert response.json()["error"]["message"] == "this template refuses"
