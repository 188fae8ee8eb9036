"""OpenAI's own Python client against a real server."""

import asyncio
from collections.abc import Iterator

import openai
import pytest
from tests.e2e.serving import Served

QUESTION = [{"role": "user", "content": "Name one colour."}]


@pytest.fixture
def client(server: Served) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as made:
        yield made


def test_the_model_list_names_every_alias(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["demo", "alias"]
    assert client.models.retrieve("alias").id == "alias"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("other")


def test_a_chat_answers_and_counts(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="demo", messages=QUESTION, max_tokens=8, temperature=0
    )
    (choice,) = answer.choices
    assert choice.message.role == "assistant"
    assert choice.message.content
    assert choice.finish_reason in ("stop", "length")
    assert answer.model == "demo"
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert answer.usage.prompt_tokens_details.cached_tokens == 0


def test_a_streamed_chat_is_the_whole_one(client: openai.OpenAI) -> None:
    asked = {"model": "demo", "messages": QUESTION, "max_tokens": 24, "temperature": 0}
    whole = client.chat.completions.create(**asked)
    chunks = list(
        client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True})
    )
    assert chunks[0].choices[0].delta.role == "assistant"
    text = "".join(c.choices[0].delta.content or "" for c in chunks[:-1])
    assert text == whole.choices[0].message.content
    reasons = [c.choices[0].finish_reason for c in chunks[:-1]]
    assert reasons == [None] * (len(reasons) - 1) + [whole.choices[0].finish_reason]
    assert chunks[-1].choices == []
    assert chunks[-1].usage == whole.usage


def test_a_seed_gives_the_same_answer_again_whatever_else_runs(server: Served) -> None:
    async def ask(client: openai.AsyncOpenAI, seed: int) -> str:
        answer = await client.completions.create(
            model="demo", prompt="Once", max_tokens=12, seed=seed, temperature=1.0
        )
        return str(answer.choices[0].text)

    async def scene() -> None:
        async with openai.AsyncOpenAI(
            base_url=f"{server.url}/v1", api_key="none", max_retries=0
        ) as client:
            alone = await ask(client, 7)
            together = await asyncio.gather(*(ask(client, seed) for seed in (7, 8, 9, 7)))
            assert together[0] == together[3] == alone
            assert len(set(together)) == 3

    asyncio.run(scene())


def test_logprobs_are_there_in_both_modes_and_equal(client: openai.OpenAI) -> None:
    asked = {
        "model": "demo",
        "messages": QUESTION,
        "max_tokens": 4,
        "temperature": 0,
        "logprobs": True,
        "top_logprobs": 3,
    }
    whole = client.chat.completions.create(**asked).choices[0].logprobs.content
    assert [len(entry.top_logprobs) for entry in whole] == [3] * len(whole)
    for entry in whole:
        assert entry.top_logprobs[0].logprob == entry.logprob  # greedy takes the likeliest
        assert bytes(entry.bytes).decode() == entry.token
    streamed = [
        entry
        for chunk in client.chat.completions.create(**asked, stream=True)
        if chunk.choices[0].logprobs
        for entry in chunk.choices[0].logprobs.content
    ]
    assert streamed == whole


def test_echo_scores_a_prompt(client: openai.OpenAI) -> None:
    answer = client.completions.create(
        model="demo", prompt="The sea is blue", max_tokens=1, echo=True, logprobs=1, temperature=0
    )
    choice = answer.choices[0]
    scores = choice.logprobs
    assert choice.text.startswith("The sea is blue")
    assert len(scores.tokens) == answer.usage.prompt_tokens + 1
    assert scores.token_logprobs[0] is None
    assert all(p < 0 for p in scores.token_logprobs[1:])
    assert scores.text_offset == sorted(scores.text_offset)
    assert "".join(scores.tokens) == choice.text


def test_n_and_lists_come_in_order(client: openai.OpenAI) -> None:
    answer = client.completions.create(
        model="demo", prompt=["One", "Two"], n=2, echo=True, max_tokens=1, temperature=0
    )
    assert [c.index for c in answer.choices] == [0, 1, 2, 3]
    assert [c.text[:3] for c in answer.choices] == ["One", "One", "Two", "Two"]


def test_errors_are_openais_kinds(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as missing:
        client.chat.completions.create(model="gpt-x", messages=QUESTION)
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as bad:
        client.chat.completions.create(model="demo", messages=QUESTION, temperature=-1)
    assert bad.value.param == "temperature"
    with pytest.raises(openai.BadRequestError) as long:
        client.completions.create(model="demo", prompt=[1] * 9000)
    assert long.value.code == "context_length_exceeded"
    with pytest.raises(openai.BadRequestError) as tools:
        client.chat.completions.create(
            model="demo",
            messages=QUESTION,
            tools=[{"type": "function", "function": {"name": "f", "parameters": {}}}],
            stream=True,
        )
    assert tools.value.param == "tools"


def test_leaving_a_stream_frees_the_server(client: openai.OpenAI, server: Served) -> None:
    before = server.metric('roost_requests_total{outcome="client_disconnected"}')
    stream = client.completions.create(
        model="demo",
        prompt="Once",
        max_tokens=2000,
        stream=True,
        extra_body={"ignore_eos": True},
    )
    assert next(iter(stream)).choices
    stream.close()
    answer = client.completions.create(model="demo", prompt="Twice", max_tokens=1)
    assert answer.choices[0].finish_reason == "length"
    after = server.metric('roost_requests_total{outcome="client_disconnected"}')
    assert after == before + 1
