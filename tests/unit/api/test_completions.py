"""`/v1/completions`, as OpenAI had it and evaluation harnesses use it."""

import pytest
from tests.unit.api.rig import Json, Rig

PATH = "/v1/completions"


def test_the_default_is_sixteen_tokens(rig: Rig) -> None:
    rig.parrot.reply = b"x" * 100
    answer = rig.post(PATH, {"prompt": "hi"}).json()
    assert answer["object"] == "text_completion"
    assert answer["usage"]["completion_tokens"] == 16
    assert answer["choices"][0]["text"] == "x" * 16
    assert answer["choices"][0]["logprobs"] is None


@pytest.mark.parametrize("prompt", [["a", "b"], [[97], [98]]])
@pytest.mark.parametrize("stream", [False, True])
def test_choice_index_is_prompt_times_n_plus_sample(rig: Rig, prompt: object, stream: bool) -> None:
    body: Json = {"prompt": prompt, "n": 2, "echo": True, "max_tokens": 1}
    if stream:
        chunks = rig.stream(PATH, body)
        choices = [c for chunk in chunks for c in chunk["choices"]]  # type: ignore[attr-defined]
    else:
        choices = rig.post(PATH, body).json()["choices"]
    texts = dict.fromkeys(range(4), "")
    for choice in choices:
        texts[choice["index"]] += choice["text"]
    assert texts == {0: "aH", 1: "aH", 2: "bH", 3: "bH"}


def test_one_prompt_of_ids_is_one_prompt(rig: Rig) -> None:
    answer = rig.post(PATH, {"prompt": [97, 98], "echo": True}).json()
    assert [c["text"] for c in answer["choices"]] == ["abHello"]
    assert answer["usage"]["prompt_tokens"] == 2


@pytest.mark.parametrize("stream", [False, True])
def test_echo_with_logprobs_is_what_harnesses_score(rig: Rig, stream: bool) -> None:
    body: Json = {"prompt": "né", "echo": True, "logprobs": 1, "max_tokens": 1}
    if stream:
        chunks = rig.stream(PATH, body)
        choices = [c for chunk in chunks for c in chunk["choices"]]  # type: ignore[attr-defined]
        assert len(choices) == 1
        choice = choices[0]
    else:
        choice = rig.post(PATH, body).json()["choices"][0]
    assert choice["text"] == "néH"
    # BOS, n, the two halves of é, H
    assert choice["logprobs"] == {
        "tokens": ["<s>", "n", "bytes:\\xc3", "bytes:\\xa9", "H"],
        "token_logprobs": [None, -0.5, -0.5, -0.5, -0.5],
        "top_logprobs": [
            None,
            {"A": -1.0, "n": -0.5},
            {"A": -1.0, "bytes:\\xc3": -0.5},
            {"A": -1.0, "bytes:\\xa9": -0.5},
            {"A": -1.0, "H": -0.5},
        ],
        "text_offset": [0, 0, 1, 1, 2],
    }


def test_echo_of_no_new_tokens_scores_the_prompt_alone(rig: Rig) -> None:
    body: Json = {"prompt": "ab", "echo": True, "logprobs": 0, "max_tokens": 0}
    choice = rig.post(PATH, body).json()["choices"][0]
    assert (choice["text"], choice["finish_reason"]) == ("ab", "length")
    assert choice["logprobs"]["token_logprobs"] == [None, -0.5, -0.5]
    assert choice["logprobs"]["top_logprobs"] is None


def test_offsets_without_echo_count_in_the_answer(rig: Rig) -> None:
    rig.parrot.reply = "aéb".encode()
    choice = rig.post(PATH, {"prompt": "hi", "logprobs": 0, "max_tokens": 4}).json()["choices"][0]
    assert choice["logprobs"]["text_offset"] == [0, 1, 1, 2]


def test_streamed_logprobs_are_those_of_the_whole(rig: Rig) -> None:
    rig.parrot.reply = b"abc" * 5
    body: Json = {"prompt": "hi", "logprobs": 2}
    whole = rig.post(PATH, body).json()["choices"][0]["logprobs"]
    joined: dict[str, list[object]] = {name: [] for name in whole}
    for chunk in rig.stream(PATH, body):
        for choice in chunk["choices"]:  # type: ignore[attr-defined]
            for name in joined:
                joined[name] += choice["logprobs"][name]
    assert joined == whole


def test_usage_comes_last_and_once(rig: Rig) -> None:
    chunks = rig.stream(PATH, {"prompt": "hi", "stream_options": {"include_usage": True}})
    assert chunks[-1]["choices"] == []
    whole = rig.post(PATH, {"prompt": "hi"}).json()["usage"]
    assert whole.pop("prompt_tokens_details") == {"cached_tokens": 2}
    assert chunks[-1]["usage"] == {**whole, "prompt_tokens_details": {"cached_tokens": 0}}
    assert all("usage" not in chunk for chunk in chunks[:-1])


def test_best_of_n_is_n(rig: Rig) -> None:
    assert rig.post(PATH, {"prompt": "hi", "n": 2, "best_of": 2}).status_code == 200
