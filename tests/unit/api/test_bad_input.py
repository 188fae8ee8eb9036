"""What cannot be served is a 4xx that names the field, whatever the route, streamed or not; and
the next request is fine.
"""

import json
from collections.abc import AsyncIterator

import httpx
import pytest
from tests.unit.api.rig import Json, Rig, open_rig

GENERATE, CHAT, LEGACY = "/generate", "/v1/chat/completions", "/v1/completions"
HI = [{"role": "user", "content": "hi"}]
LONG = "x" * 300


def error_of(response: httpx.Response) -> Json:
    assert response.headers["content-type"] == "application/json"
    assert len(response.content) < 4096
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    assert isinstance(error, dict)
    return error


def assert_still_serves(rig: Rig) -> None:
    assert rig.post(GENERATE, {"text": "hi"}).json()["text"] == "Hello"
    assert rig.frontend.live == ()


def sampling(**params: object) -> Json:
    return {"text": "hi", "sampling_params": params}


NATIVE_ROWS: list[tuple[Json, str | None, str]] = [
    ({}, "text", "exactly one of text and input_ids"),
    ({"text": "hi", "input_ids": [1]}, "text", "exactly one of text and input_ids"),
    ({"text": ""}, "text", "empty"),
    ({"text": []}, "text", "empty"),
    ({"text": ["a", ""]}, "text", "empty"),
    ({"text": 3}, "text", "Expected str | array | null, got int"),
    ({"input_ids": []}, "input_ids", "empty"),
    ({"input_ids": [[]]}, "input_ids", "empty"),
    ({"input_ids": [1, [2]]}, "input_ids", "not both"),
    ({"input_ids": [-1]}, "input_ids", "got -1"),
    ({"input_ids": [259]}, "input_ids", "got 259"),
    ({"input_ids": [1.5]}, "input_ids[0]", "got float"),
    ({"text": LONG}, None, "longer than the model's context length (256 tokens)"),
    (
        sampling(max_new_tokens=254),
        "max_new_tokens",
        "Requested token count exceeds the model's maximum context length",
    ),
    (sampling(temperature=-0.1), "temperature", "[0, ∞)"),
    (sampling(top_p=0), "top_p", "(0, 1]"),
    (sampling(top_p=1.1), "top_p", "(0, 1]"),
    (sampling(top_k=0), "top_k", "-1 or at least 1"),
    (sampling(min_p=2), "min_p", "[0, 1]"),
    (sampling(n=0), "n", "[1, 128]"),
    (sampling(n=5_000_000), "n", "[1, 128]"),
    (sampling(max_new_tokens=-1), "max_new_tokens", "[0, ∞)"),
    (sampling(max_new_tokens=2, min_new_tokens=3), "min_new_tokens", "max_new_tokens (2)"),
    (sampling(stop=""), "stop", "1 to 256 bytes"),
    (sampling(stop=["x"] * 33), "stop", "at most 32"),
    (sampling(stop_regex="("), "stop_regex", ""),
    (sampling(stop_token_ids=[259]), "stop_token_ids", "got 259"),
    (sampling(logit_bias={"259": 1}), "logit_bias", "token ids"),
    (sampling(logit_bias={"a": 1}), "logit_bias", "token ids"),
    (sampling(logit_bias={"9" * 5000: 1}), "logit_bias", "token ids"),
    (sampling(seed=1 << 64), "sampling_params.seed", "64 bits"),
    (sampling(max_new_tokens=10**4000), "sampling_params.max_new_tokens", "64 bits"),
    ({**sampling(), "priority": 1 << 64}, "priority", "64 bits"),
    ({**sampling(), "priority": -(1 << 63) - 1}, "priority", "64 bits"),
    (sampling(temperature="hot"), "sampling_params.temperature", "Expected float, got str"),
    (sampling(tempratur=1), "sampling_params.tempratur", "Did you mean temperature?"),
    (sampling(json_schema="{}"), "sampling_params.json_schema", "not supported"),
    ({**sampling(), "lora_path": "x"}, "lora_path", "not supported"),
    ({**sampling(), "strem": True}, "strem", "Did you mean stream?"),
    ({**sampling(), "session_params": [{"id": "x"}]}, "session_params", "Expected object"),
    ({**sampling(), "session_params": "x"}, "session_params", "Expected object"),
    ({**sampling(), "session_params": {}}, "session_params", "required field id"),
    ({**sampling(), "session_params": {"id": None}}, "session_params.id", "got null"),
    ({**sampling(), "session_params": {"id": 3}}, "session_params.id", "got int"),
    ({**sampling(), "session_params": {"id": ""}}, "session_params.id", "1 to 256"),
    ({**sampling(), "session_params": {"id": "x" * 257}}, "session_params.id", "1 to 256"),
    ({**sampling(), "session_params": {"id": "x", "rid": ""}}, "session_params.rid", "1 to 256"),
    (
        {**sampling(), "session_params": {"id": "x", "rid": "r" * 10**6}},
        "session_params.rid",
        "1 to 256",
    ),
    ({**sampling(), "session_params": {"id": "x", "rid": 7}}, "session_params.rid", "got int"),
    (
        {**sampling(), "session_params": {"id": "x", "offset": 1.5}},
        "session_params.offset",
        "got float",
    ),
    (
        {**sampling(), "session_params": {"id": "x", "offset": 10**400}},
        "session_params.offset",
        "64 bits",
    ),
    (
        {**sampling(), "session_params": {"id": "x", "replace": "yes"}},
        "session_params.replace",
        "got str",
    ),
    (
        {**sampling(), "session_params": {"id": "x", "drop_previous_output": 1}},
        "session_params.drop_previous_output",
        "got int",
    ),
    (
        {**sampling(), "session_params": {"id": "x", "ofset": 1}},
        "session_params.ofset",
        "Did you mean offset?",
    ),
    ({**sampling(), "session_id": "x"}, "session_id", "needs session_params"),
    (
        {**sampling(), "session_id": "y", "session_params": {"id": "x"}},
        "session_id",
        "two sessions",
    ),
    ({**sampling(), "return_logprob": True, "top_logprobs_num": 10**9}, "top_logprobs_num", "128"),
    ({**sampling(), "return_logprob": True, "logprob_start_len": 9}, "logprob_start_len", "[-1,"),
    (
        {**sampling(), "return_logprob": True, "token_ids_logprob": [-5]},
        "token_ids_logprob",
        "-5",
    ),
    ({**sampling(), "timeout": 0}, "timeout", "greater than 0"),
    ({**sampling(), "rid": ""}, "rid", "1 to 256"),
    ({**sampling(), "rid": "HEALTH_CHECK_1"}, "rid", "HEALTH_CHECK"),
    ({"text": ["a", "b"], "rid": ["x"]}, "rid", "2 strings"),
    ({"text": ["a", "b"], "rid": ["x", "x"]}, "rid", "differ"),
    ({"text": ["a", "b"], "sampling_params": [{}]}, "sampling_params", "2 objects"),
]


@pytest.mark.parametrize("stream", [False, True])
def test_generate_names_what_is_wrong(stream: bool) -> None:
    with open_rig() as rig:
        for body, param, words in NATIVE_ROWS:
            response = rig.post(GENERATE, {**body, "stream": stream})
            assert response.status_code == 400, (body, response.text)
            error = error_of(response)
            assert words in str(error["message"]), (body, error)
            assert error["code"] == 400
            assert error["param"] == param, (body, error)
            assert response.json()["object"] == "error"
            assert response.json()["message"] == error["message"]
        assert_still_serves(rig)


def chat(**fields: object) -> Json:
    return {"messages": HI, **fields}


CHAT_ROWS: list[tuple[Json, str | None, str]] = [
    ({}, "messages", "messages"),
    ({"messages": []}, "messages", "empty"),
    ({"messages": "hi"}, "messages", "Expected array"),
    ({"messages": [{"content": "hi"}]}, "messages[0]", "role"),
    ({"messages": [{"role": "robot", "content": "hi"}]}, "messages[0].role", "robot"),
    (
        {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
        "messages[0].content[0]",
        "image_url",
    ),
    ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role", "tool"),
    (
        {"messages": [{"role": "assistant", "tool_calls": [{"id": "a"}]}]},
        "messages[0].tool_calls",
        "not supported",
    ),
    (chat(tools=[{"type": "function"}]), "tools", "not supported"),
    (chat(tool_choice="required"), "tool_choice", "not supported"),
    (chat(response_format={"type": "json_object"}), "response_format", "not supported"),
    (chat(functions=[{}]), "functions", "not supported"),
    (chat(modalities=["audio"]), "modalities", "not supported"),
    (chat(stream_options={"include_usage": True}), "stream_options", "stream is true"),
    (chat(top_logprobs=2), "top_logprobs", "logprobs"),
    (chat(logprobs=True, top_logprobs=10**9), "top_logprobs", "128"),
    (chat(max_tokens=-1), "max_tokens", ">= 0"),
    (chat(max_tokens="many"), "max_tokens", "Expected int"),
    (chat(temperature=-1), "temperature", "[0, ∞)"),
    (chat(n=0), "n", "[1, 128]"),
    (chat(stop=[""]), "stop", "1 to 256 bytes"),
    (chat(logit_bias={"99999": 1}), "logit_bias", "token ids"),
    (chat(seed=1.5), "seed", "Expected int"),
    (chat(min_tokens=9, max_tokens=3), "min_tokens", "min_tokens must be in [0, max_tokens (3)]"),
    (chat(priority=1 << 70), "priority", "64 bits"),
    (chat(chat_template="{{ 1 }}"), "chat_template", "not supported"),
    (
        {"messages": [{"role": "user", "content": [{"type": "text"}]}]},
        "messages[0].content[0]",
        "must have a text",
    ),
    (chat(chat_template_kwargs={"messages": 1}), "chat_template_kwargs", "messages"),
    (chat(continue_final_message=True), "continue_final_message", "assistant"),
    (chat(session_params={"id": ""}), "session_params.id", "1 to 256"),
    (chat(session_params={"id": "x", "rids": "a"}), "session_params.rids", "Did you mean rid?"),
    (chat(session_params={"id": "x"}, session_id="y"), "session_id", "two sessions"),
    (chat(session_id="y"), "session_id", "needs session_params"),
    (chat(timeout=0), "timeout", "greater than 0"),
    (chat(timeout="soon"), "timeout", "Expected float"),
]


@pytest.mark.parametrize("stream", [False, True])
def test_chat_names_what_is_wrong(stream: bool) -> None:
    with open_rig() as rig:
        for body, param, words in CHAT_ROWS:
            if stream and "stream_options" in body:
                continue
            response = rig.post(CHAT, {**body, "stream": stream})
            assert response.status_code == 400, (body, response.text)
            error = error_of(response)
            assert words in str(error["message"]), (body, error)
            assert error["type"] == "invalid_request_error"
            assert error["param"] == param, (body, error)
        assert_still_serves(rig)


LEGACY_ROWS: list[tuple[Json, str | None, str]] = [
    ({}, "prompt", "prompt"),
    ({"prompt": ""}, "prompt", "empty"),
    ({"prompt": []}, "prompt", "empty"),
    ({"prompt": ["a", 1]}, "prompt", "not both"),
    ({"prompt": [1, [2]]}, "prompt", "not both"),
    ({"prompt": [300]}, "prompt", "got 300"),
    ({"prompt": "hi", "suffix": "x"}, "suffix", "not supported"),
    ({"prompt": "hi", "best_of": 2}, "best_of", "n"),
    ({"prompt": "hi", "logprobs": 1000}, "logprobs", "128"),
    ({"prompt": "hi", "logprobs": True}, "logprobs", "Expected int"),
    ({"prompt": "hi", "timeout": -1}, "timeout", "greater than 0"),
    ({"prompt": "hi", "session_params": {"id": 1}}, "session_params.id", "got int"),
    ({"prompt": "hi", "session_params": {"rid": "a"}}, "session_params", "required field id"),
]


@pytest.mark.parametrize("stream", [False, True])
def test_completions_name_what_is_wrong(stream: bool) -> None:
    with open_rig() as rig:
        for body, param, words in LEGACY_ROWS:
            response = rig.post(LEGACY, {**body, "stream": stream})
            assert response.status_code == 400, (body, response.text)
            error = error_of(response)
            assert words in str(error["message"]), (body, error)
            assert error["param"] == param, (body, error)
        assert_still_serves(rig)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("path", "body"),
    [(CHAT, {"messages": [{"role": "user", "content": LONG}]}), (LEGACY, {"prompt": LONG})],
)
def test_what_is_too_long_says_so_as_agents_expect(
    rig: Rig, path: str, body: Json, stream: bool
) -> None:
    response = rig.post(path, {**body, "stream": stream})
    assert response.status_code == 400
    error = error_of(response)
    assert error["code"] == "context_length_exceeded"
    assert "maximum context length is 256 tokens" in str(error["message"])


def test_an_unknown_model_is_404_and_lists_the_names(rig: Rig) -> None:
    for path, body in ((CHAT, chat(model="gpt")), (LEGACY, {"prompt": "hi", "model": "gpt"})):
        response = rig.post(path, body)
        assert response.status_code == 404
        error = error_of(response)
        assert error["code"] == "model_not_found"
        assert "demo" in str(error["message"])
    for name in ("demo", "default", None):
        assert rig.post(CHAT, chat(model=name)).json()["model"] == "demo"


MALFORMED = [
    b"",
    b"{",
    b'{"text": "hi",}',
    b'{"text": "hi"} trailing',
    b'{"text": NaN}',
    b'{"text": "hi", "sampling_params": {"temperature": NaN}}',
    b'{"text": "hi", "sampling_params": {"temperature": -Infinity}}',
    b'{"text": "hi", "sampling_params": {"temperature": 1e999}}',
    b'{"text": "\xff"}',
    b'{"text": "\\ud800"}',
    b'{"messages": ' + b"[" * 100_000,
    b"[]",
    b'"hi"',
    b"null",
]


@pytest.mark.parametrize("path", [GENERATE, CHAT, LEGACY, "/tokenize", "/abort_request"])
def test_malformed_json_is_400(rig: Rig, path: str) -> None:
    for body in MALFORMED:
        response = rig.post(path, body)
        assert response.status_code == 400, body[:60]
        error_of(response)
    assert_still_serves(rig)


def test_only_json_is_json(rig: Rig) -> None:
    body = json.dumps({"text": "hi"}).encode()
    for kind in ("text/plain", "application/x-www-form-urlencoded", "application/jsonp"):
        response = rig.post(GENERATE, body, **{"content-type": kind})
        assert response.status_code == 415
        assert "application/json" in str(error_of(response)["message"])
    for kind in ("application/json; charset=utf-8", "application/vnd.x+json", "Application/JSON"):
        assert rig.post(GENERATE, body, **{"content-type": kind}).status_code == 200


def test_a_body_over_the_limit_is_413() -> None:
    with open_rig(max_request_bytes=2048) as rig:
        response = rig.post(GENERATE, {"text": "x" * 3000})
        assert response.status_code == 413
        assert error_of(response)["message"] == "The request body is larger than 2048 bytes."

        async def undeclared() -> httpx.Response:
            async def pieces() -> AsyncIterator[bytes]:
                for _ in range(10):
                    yield b" " * 1000

            headers = {"content-type": "application/json"}
            return await rig.client.post(CHAT, content=pieces(), headers=headers)

        assert rig.run(undeclared()).status_code == 413
        assert_still_serves(rig)


def test_an_error_repeats_no_long_input(rig: Rig) -> None:
    long = "é👋\x01" * 5000
    for path, body in (
        (CHAT, chat(model=long)),
        (CHAT, chat(logit_bias={long: 1})),
        (CHAT, {"messages": [{"role": long, "content": ""}]}),
        (GENERATE, {"text": "hi", long: 1}),
        (GENERATE, sampling(**{long: 1})),
        (f"/v1/{'y' * 5000}", {}),
    ):
        response = rig.post(path, body)
        assert 400 <= response.status_code < 500
        assert len(response.content) < 4096


def test_routes_and_methods_that_are_not_there_say_so(rig: Rig) -> None:
    assert error_of(rig.get("/v1/nothing"))["code"] == "no_such_route"
    assert rig.get("/nothing").json()["error"]["code"] == 404
    refused = rig.get(CHAT)
    assert refused.status_code == 405
    assert refused.headers["allow"] == "POST"
    assert error_of(refused)["code"] == "method_not_allowed"
    for path in (f"{CHAT}/", "/generate/"):
        assert error_of(rig.post(path, {}))["message"] == f"There is no {path} here."


def test_ids_to_detokenize_are_checked(rig: Rig) -> None:
    for tokens in ([259], [-1], [[1], [999]], [1, [2]]):
        assert rig.post("/detokenize", {"tokens": tokens}).status_code == 400
    both = {"prompt": "a", "messages": HI}
    assert rig.post("/tokenize", both).status_code == 400
    assert rig.post("/tokenize", {}).status_code == 400
