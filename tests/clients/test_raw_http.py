"""What any HTTP client sees of a real server."""

import json
import socket

import httpx
import pytest
from tests.e2e.serving import Served, until


def test_health_routes_answer_at_once(server: Served) -> None:
    for path in ("/health", "/ready", "/ping", "/health_generate", "/metrics"):
        response = httpx.get(server.url + path, timeout=30)
        assert response.status_code == 200, path


def test_a_native_stream_is_events_and_ends_with_done(server: Served) -> None:
    body = {"text": "Once", "sampling_params": {"max_new_tokens": 3}, "stream": True}
    with httpx.stream("POST", server.url + "/generate", json=body, timeout=30) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        assert response.headers["cache-control"] == "no-cache"
        lines = [line for line in response.iter_lines() if line]
    assert lines[-1] == "data: [DONE]"
    last = json.loads(lines[-2].removeprefix("data: "))
    assert last["meta_info"]["finish_reason"] == {"type": "length", "length": 3}


def test_bad_input_of_every_sort_leaves_the_server_well(server: Served) -> None:
    rows: list[tuple[str, bytes, str, int]] = [
        ("/generate", b"{", "application/json", 400),
        ("/generate", b'{"text": "x", "sampling_params": {"top_p": NaN}}', "application/json", 400),
        ("/generate", b'{"text": ""}', "application/json", 400),
        ("/generate", b'{"input_ids": [999999]}', "application/json", 400),
        ("/generate", b'{"input_ids": [-1]}', "application/json", 400),
        ("/generate", b'{"text": "x"}', "text/plain", 415),
        ("/v1/chat/completions", b'{"messages": []}', "application/json", 400),
        ("/v1/chat/completions", b"[" * 100_000, "application/json", 400),
        ("/v1/completions", b'{"prompt": [[[]]]}', "application/json", 400),
        ("/v1/nothing", b"{}", "application/json", 404),
        ("/v1/models", b"{}", "application/json", 405),
        ("/abort_request", b'{"rid": ""}', "application/json", 400),
    ]
    with httpx.Client(base_url=server.url, timeout=30) as client:
        for path, content, kind, status in rows:
            response = client.post(path, content=content, headers={"content-type": kind})
            assert response.status_code == status, (path, content[:40], response.text)
            assert response.json()["error"]["message"]
            assert len(response.content) < 4096
        well = client.post(
            "/generate", json={"text": "x", "sampling_params": {"max_new_tokens": 1}}
        )
        assert well.status_code == 200


def test_a_body_over_the_limit_is_refused_before_it_is_sent(server: Served) -> None:
    head = (
        b"POST /generate HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        b"content-length: 1099511627776\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as raw:
        raw.sendall(head)
        assert raw.recv(64).startswith(b"HTTP/1.1 413 ")


def test_settings_and_reasons_are_told(server: Served) -> None:
    info = httpx.get(server.url + "/server_info", timeout=30).json()
    assert info["served_model_name"] == "demo"
    assert info["max_total_tokens"] == 16384
    assert info["reasons"]["max_total_tokens"] == "--max-total-tokens"
    assert info["internal_states"][0]["max_total_num_tokens"] == 16384
    model = httpx.get(server.url + "/model_info", timeout=30).json()
    assert model["max_model_len"] == 8192


def test_what_is_tokenised_can_be_read_back(server: Served) -> None:
    text = "Straße 东京 👋 <|im_end|> x"
    found = httpx.post(server.url + "/tokenize", json={"prompt": text}, timeout=30).json()
    assert found["count"] == len(found["tokens"])
    back = {"tokens": found["tokens"], "skip_special_tokens": False}
    read = httpx.post(server.url + "/detokenize", json=back, timeout=30).json()
    assert read == {"text": text}


def test_a_client_that_gives_up_waiting_frees_the_server(server: Served) -> None:
    name = 'roost_requests_total{outcome="client_disconnected"}'
    before = server.metric(name)
    body = {"prompt": "Once", "max_tokens": 4000, "ignore_eos": True}
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(server.url + "/v1/completions", json=body, timeout=0.5)
    until(lambda: server.metric(name) == before + 1)
    until(lambda: httpx.get(server.url + "/v1/loads", timeout=30).json()[0]["num_reqs"] == 0)
