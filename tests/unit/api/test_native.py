"""`/generate` as SGLang's clients know it."""

import pytest
from tests.unit.api.rig import EOS, Json, Rig

META = {
    "id",
    "finish_reason",
    "prompt_tokens",
    "completion_tokens",
    "cached_tokens",
    "reasoning_tokens",
    "weight_version",
    "num_retractions",
    "seed",
    "e2e_latency",
    "queue_time",
    "first_token_latency",
    "decode_throughput",
}


def meta_of(answer: Json) -> Json:
    meta = answer["meta_info"]
    assert isinstance(meta, dict)
    return meta


def test_an_answer_has_its_text_its_ids_and_all_counts(rig: Rig) -> None:
    answer = rig.post("/generate", {"text": "hi", "rid": "mine"}).json()
    assert answer["text"] == "Hello"
    assert answer["output_ids"] == [*b"Hello", EOS]
    meta = meta_of(answer)
    assert set(meta) == META
    assert meta["id"] == "mine"
    assert meta["finish_reason"] == {"type": "stop", "matched": EOS}
    assert (meta["prompt_tokens"], meta["completion_tokens"], meta["cached_tokens"]) == (3, 6, 0)


def test_put_is_as_good_as_post(rig: Rig) -> None:
    response = rig.run(rig.client.put("/generate", json={"text": "hi"}))
    assert response.json()["text"] == "Hello"


def test_length_says_how_long(rig: Rig) -> None:
    body = {"text": "hi", "sampling_params": {"max_new_tokens": 2}}
    answer = rig.post("/generate", body).json()
    assert answer["text"] == "He"
    assert meta_of(answer)["finish_reason"] == {"type": "length", "length": 2}


@pytest.mark.parametrize(
    ("params", "text", "matched"),
    [
        ({"stop": "lo"}, "Hel", "lo"),
        ({"stop": ["x", "l"]}, "He", "l"),
        ({"stop": "lo", "no_stop_trim": True}, "Hello", "lo"),
        ({"stop_regex": "l+"}, "He", "l+"),
        ({"stop_token_ids": [111]}, "Hell", 111),
    ],
)
def test_a_stop_is_cut_off_and_named(rig: Rig, params: Json, text: str, matched: int | str) -> None:
    answer = rig.post("/generate", {"text": "hi", "sampling_params": params}).json()
    assert answer["text"] == text
    assert meta_of(answer)["finish_reason"] == {"type": "stop", "matched": matched}
    frames = rig.stream("/generate", {"text": "hi", "sampling_params": params})
    assert frames[-1]["text"] == text


def test_zero_new_tokens_is_a_prefill(rig: Rig) -> None:
    body: Json = {
        "text": "hi",
        "sampling_params": {"max_new_tokens": 0},
        "return_logprob": True,
        "logprob_start_len": 0,
    }
    answer = rig.post("/generate", body).json()
    assert (answer["text"], answer["output_ids"]) == ("", [])
    meta = meta_of(answer)
    assert meta["finish_reason"] == {"type": "length", "length": 0}
    assert meta["input_token_logprobs"] == [[None, 256, None], [-0.5, 104, None], [-0.5, 105, None]]


def test_ids_in_and_the_same_answer_out(rig: Rig) -> None:
    body: Json = {"input_ids": [104, 105], "return_prompt_token_ids": True}
    answer = rig.post("/generate", body).json()
    assert answer["text"] == "Hello"
    assert answer["prompt_token_ids"] == [104, 105]
    assert meta_of(answer)["prompt_tokens"] == 2


@pytest.mark.parametrize("stream", [False, True])
def test_a_list_gives_a_list_in_order(rig: Rig, stream: bool) -> None:
    body: Json = {
        "text": ["a", "bb"],
        "rid": "g",
        "sampling_params": [{"max_new_tokens": 1}, {"max_new_tokens": 2, "n": 2}],
    }
    answers = rig.stream("/generate", body) if stream else rig.post("/generate", body).json()
    last = {answer["index"]: answer for answer in answers}
    assert [last[i]["text"] for i in range(3)] == ["H", "He", "He"]
    assert [meta_of(last[i])["id"] for i in range(3)] == ["g_0", "g_1", "g_2"]
    assert [meta_of(last[i])["prompt_tokens"] for i in range(3)] == [2, 3, 3]


def test_each_prompt_may_bring_its_rid(rig: Rig) -> None:
    answers = rig.post("/generate", {"text": ["a", "b"], "rid": ["x", "y"]}).json()
    assert [meta_of(a)["id"] for a in answers] == ["x", "y"]


def test_frames_carry_all_the_text_so_far_or_deltas_if_asked(rig: Rig) -> None:
    rig.parrot.reply = b"abcdefgh" * 10
    whole = "abcdefgh" * 10
    so_far = rig.stream("/generate", {"text": "hi"})
    texts = [str(frame["text"]) for frame in so_far]
    assert texts == sorted(texts, key=len)
    assert texts[-1] == whole
    assert "index" not in so_far[0]
    assert [meta_of(f)["finish_reason"] is None for f in so_far] == [True] * (len(so_far) - 1) + [
        False
    ]
    deltas = rig.stream("/generate", {"text": "hi", "incremental": True})
    assert "".join(str(frame["text"]) for frame in deltas) == whole
    ids = [i for frame in deltas for i in frame["output_ids"]]  # type: ignore[attr-defined]
    assert ids == [*whole.encode(), EOS]


def test_logprobs_come_with_ids_and_texts_when_asked(rig: Rig) -> None:
    body: Json = {
        "text": "hi",
        "sampling_params": {"max_new_tokens": 1},
        "return_logprob": True,
        "logprob_start_len": 1,
        "top_logprobs_num": 2,
        "token_ids_logprob": [7],
        "return_text_in_logprobs": True,
    }
    meta = meta_of(rig.post("/generate", body).json())
    assert meta["input_token_logprobs"] == [[-0.5, 104, "h"], [-0.5, 105, "i"]]
    assert meta["output_token_logprobs"] == [[-0.5, 72, "H"]]
    assert meta["output_top_logprobs"] == [[[-1.0, 65, "A"], [-2.0, 66, "B"]]]
    assert meta["output_token_ids_logprobs"] == [[[-9.0, 7, "\x07"]]]
    assert set(meta) > META


def test_logprobs_of_a_stream_are_those_of_the_whole(rig: Rig) -> None:
    body: Json = {"text": "hi", "return_logprob": True, "top_logprobs_num": 1}
    whole = meta_of(rig.post("/generate", body).json())
    last = meta_of(rig.stream("/generate", body)[-1])
    for name in ("output_token_logprobs", "output_top_logprobs", "input_token_logprobs"):
        assert last[name] == whole[name]
    assert whole["input_token_logprobs"] == []


def test_half_characters_wait_for_their_other_half(rig: Rig) -> None:
    rig.parrot.reply = "é👋ß".encode()
    assert rig.post("/generate", {"text": "hi"}).json()["text"] == "é👋ß"
    frames = rig.stream("/generate", {"text": "hi", "incremental": True})
    assert "".join(str(f["text"]) for f in frames) == "é👋ß"
    assert all("\ufffd" not in str(f["text"]) for f in frames)


def test_min_new_tokens_bans_the_end(rig: Rig) -> None:
    params = {"min_new_tokens": 8, "max_new_tokens": 20}
    answer = rig.post("/generate", {"text": "hi", "sampling_params": params}).json()
    assert answer["text"] == "Hello~~~"


def test_a_seed_comes_back(rig: Rig) -> None:
    body = {"text": "hi", "sampling_params": {"seed": 42, "n": 2}}
    answers = rig.post("/generate", body).json()
    assert [meta_of(a)["seed"] for a in answers] == [42, 43]


def test_tokenize_and_detokenize_are_each_others_inverse(rig: Rig) -> None:
    found = rig.post("/tokenize", {"prompt": "hé"}).json()
    assert found == {
        "tokens": [256, 104, 0xC3, 0xA9],
        "count": 4,
        "max_model_len": 256,
        "prompt": "hé",
    }
    bare = rig.post("/v1/tokenize", {"prompt": ["h", "i"], "add_special_tokens": False}).json()
    assert (bare["tokens"], bare["count"]) == ([[104], [105]], [1, 1])
    assert rig.post("/detokenize", {"tokens": found["tokens"]}).json() == {"text": "hé"}
    both = {"tokens": [[256, 104], [105]], "skip_special_tokens": False}
    assert rig.post("/v1/detokenize", both).json() == {"text": ["<s>h", "i"]}


def test_tokenize_shows_what_a_chat_becomes(rig: Rig) -> None:
    messages = [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]
    found = rig.post("/v1/tokenize", {"messages": messages}).json()
    assert found["prompt"] == "[user]hi<|im_end|>[assistant]"
    chat = rig.post("/v1/chat/completions", {"messages": messages}).json()
    assert chat["usage"]["prompt_tokens"] == found["count"]


def test_info_names_the_model_and_hides_keys(rig: Rig) -> None:
    info = rig.get("/model_info").json()
    assert (info["model_path"], info["max_model_len"]) == ("/models/parrot.gguf", 256)
    assert rig.get("/get_model_info").json() == info
    server = rig.get("/server_info").json()
    assert server["max_running_requests"] == 64
    assert server["internal_states"][0]["max_total_num_tokens"] == 1024
    assert server["reasons"] == {"port": "--port"}
    assert rig.get("/v1/loads").json()[0]["num_reqs"] == 0
