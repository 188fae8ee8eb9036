"""`from roost import Engine`: the engine in a Python program."""

import asyncio
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from roost import Engine, SamplingParams
from roost.core.errors import EngineFault, ModelError, PromptTooLong, RequestError
from roost.core.request import LogprobsWanted
from roost.launch.completion import Completion

GREEDY = SamplingParams(max_new_tokens=12, temperature=0.0)


@pytest.fixture(scope="module")
def engine(demo_model: Path) -> Iterator[Engine]:
    with Engine(str(demo_model), max_total_tokens=4096) as made:
        yield made


def test_it_answers_with_text_tokens_and_why_it_ended(engine: Engine) -> None:
    answer = engine.generate("The capital of France is", GREEDY)
    assert "Paris" in answer.text
    assert answer.finish_reason in {"length", "stop"}
    assert len(answer.token_ids) == answer.usage.num_completion_tokens <= 12
    assert answer.usage.num_prompt_tokens == len(answer.prompt_ids)
    assert list(answer.prompt_ids) == engine.encode("The capital of France is")


def test_the_same_prompt_as_ids_or_alone_or_in_a_list_has_the_same_answer(engine: Engine) -> None:
    params = SamplingParams(max_new_tokens=16, seed=7)
    alone = engine.generate("Once upon a time", params)
    as_ids = engine.generate(sampling=params, prompt_ids=engine.encode("Once upon a time"))
    together = engine.generate(["Once upon a time", "In 1969", "def main():"], params)
    assert alone.token_ids == as_ids.token_ids == together[0].token_ids
    assert [a.seed for a in together] == [7, 7, 7]


def test_n_answers_are_numbered_prompt_by_prompt(engine: Engine) -> None:
    params = SamplingParams(max_new_tokens=4, seed=3, n=2)
    answers = engine.generate_many(["One", [2, 3, 4]], params)
    assert [a.seed for a in answers] == [3, 4, 3, 4]
    with pytest.raises(RequestError, match="list of prompts"):
        engine.generate("One", params)


def test_a_stream_joins_to_the_answer(engine: Engine) -> None:
    whole = engine.generate("The sea", GREEDY)
    pieces = list(engine.stream("The sea", GREEDY))
    assert "".join(p.text for p in pieces) == whole.text
    assert [i for p in pieces for i in p.token_ids] == list(whole.token_ids)
    assert [p.ended is not None for p in pieces] == [False] * (len(pieces) - 1) + [True]


def test_leaving_a_stream_frees_its_request(engine: Engine) -> None:
    stream = engine.stream("The sea", SamplingParams(max_new_tokens=2000, ignore_eos=True))
    next(stream)
    stream.close()  # type: ignore[attr-defined]  # a generator
    assert engine._frontend.live == ()


def test_messages_go_through_the_chat_template(engine: Engine) -> None:
    answer = engine.chat([{"role": "user", "content": "Say hi."}], GREEDY)
    assert "<|im_start|>user\nSay hi.<|im_end|>" in engine.decode(
        answer.prompt_ids, skip_special=False
    )
    assert answer.text


def test_logprobs_of_prompt_and_answer_are_given(engine: Engine) -> None:
    wanted = LogprobsWanted(chosen=True, prompt_from=0, top=2)
    answer = engine.generate("The sea is", GREEDY, logprobs=wanted)
    assert [x.token_id for x in answer.logprobs] == list(answer.token_ids)
    assert [x.token_id for x in answer.prompt_logprobs] == list(answer.prompt_ids)
    assert answer.prompt_logprobs[0].logprob is None
    assert all(len(x.top) == 2 and x.top[0][0] == x.token_id for x in answer.logprobs)


def test_what_cannot_be_served_raises_and_the_engine_goes_on(engine: Engine) -> None:
    with pytest.raises(RequestError, match="prompt is empty"):
        engine.generate("")
    with pytest.raises(RequestError, match="exactly one"):
        engine.generate()
    with pytest.raises(PromptTooLong):
        engine.generate(prompt_ids=[1] * (engine.facts.max_context_tokens + 1))
    assert engine.generate("Still here", GREEDY).token_ids


def test_it_serves_event_loops_and_cancelling_cancels(engine: Engine) -> None:
    async def main() -> list[Completion]:
        long = SamplingParams(max_new_tokens=2000, ignore_eos=True)
        doomed = asyncio.create_task(engine.agenerate("The sea", long))
        both = await asyncio.gather(
            engine.agenerate("The sea", GREEDY), engine.agenerate("In 1969", GREEDY)
        )
        pieces = [piece async for piece in engine.astream("The sea", GREEDY)]
        assert "".join(p.text for p in pieces) == both[0].text
        doomed.cancel()
        with pytest.raises(asyncio.CancelledError):
            await doomed
        return list(both)

    answers = asyncio.run(main())
    assert answers[0].text == engine.generate("The sea", GREEDY).text
    assert engine._frontend.live == ()


def test_closing_leaves_no_thread_and_ends_what_ran(demo_model: Path) -> None:
    before = set(threading.enumerate())
    made = Engine(str(demo_model), max_total_tokens=2048)
    stream = made.stream("The sea", SamplingParams(max_new_tokens=1500, ignore_eos=True))
    next(stream)
    made.close()
    made.close()
    assert set(threading.enumerate()) == before
    with pytest.raises(EngineFault, match="closed"):
        made.generate("x")


def test_a_model_that_is_not_there_is_an_error_and_leaves_nothing() -> None:
    before = set(threading.enumerate())
    with pytest.raises(ModelError):
        Engine("/nowhere/model.gguf")
    assert set(threading.enumerate()) == before


def test_a_program_that_forgets_to_close_ends_by_itself(demo_model: Path) -> None:
    code = (
        "from roost import Engine, SamplingParams\n"
        f"e = Engine({str(demo_model)!r}, max_total_tokens=2048)\n"
        "print(len(e.generate('x', SamplingParams(max_new_tokens=3, ignore_eos=True)).token_ids))\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "3\n", "")
