"""A whole engine on the real demo model: what it says of itself, and that an answer is the same to
the last bit however it was computed."""

import dataclasses
import math
from pathlib import Path

import msgspec
import pytest
from tests.sim.requests import request, sampling, serial_of

from roost.core.calls import OpenSession
from roost.core.clock import ManualClock
from roost.core.config import EngineConfig, ModelConfig, ServeConfig
from roost.core.errors import ConfigError, ModelError
from roost.core.events import Delta, Ended, Event, Started, TokenLogprob
from roost.core.outcome import Outcome
from roost.core.request import GenerateRequest, LogprobsWanted, Origin, RequestId, SessionTurn
from roost.runner import FreeMemory
from roost.wire import MemoryCorridor
from roost.wire.messages import Cancel, Outputs
from roost.worker import EngineLoop, Surroundings, build_worker

HERE = Origin(0, 1)
GIB = 1 << 30


def config(model: Path, **engine: object) -> ServeConfig:
    asked = {"max_total_tokens": 2048, **engine}
    return ServeConfig(
        model=ModelConfig(model=str(model), context_length=1024),
        engine=msgspec.convert(asked, EngineConfig),
    )


def around() -> Surroundings:
    return Surroundings(
        clock=ManualClock(), measure_memory=lambda: FreeMemory(GIB, "what a test gives")
    )


def requests() -> list[GenerateRequest]:
    """Greedy and drawn, with penalties and without, short prompts and a long one."""
    wanted = LogprobsWanted(chosen=True, prompt_from=0, top=2)
    greedy = msgspec.structs.replace(sampling(40), temperature=0.0)
    drawn = msgspec.structs.replace(sampling(40, seed=7), top_p=0.9, top_k=50)
    penal = msgspec.structs.replace(drawn, repetition_penalty=1.3, frequency_penalty=0.5)
    prompts = [[1, 504, 3575, 282, 4649, 314], list(range(100, 170)), [9, 8, 7], [4] * 37]
    asked = [greedy, drawn, penal, greedy]
    return [
        request(f"r{i}", tuple(prompt), how, logprobs=wanted)
        for i, (prompt, how) in enumerate(zip(prompts, asked, strict=True))
    ]


Answer = tuple[list[int], list[TokenLogprob], list[TokenLogprob], int]


def answers(loop: EngineLoop, corridor: MemoryCorridor, *, alone: bool) -> dict[str, Answer]:
    """rid → tokens, their logprobs, the prompt's logprobs, how often it was retracted."""
    worker = corridor.connect(HERE)
    heard: dict[str, list[object]] = {}
    for one in requests():
        worker.send(one)
        while alone and loop.step():
            pass
    while loop.step():
        pass
    for message in worker.receive():
        if isinstance(message, Outputs):
            for output in message.outputs:
                heard.setdefault(output.rid, []).append(output.event)
    found: dict[str, Answer] = {}
    for rid, events in heard.items():
        deltas = [event for event in events if isinstance(event, Delta)]
        ending = events[-1]
        assert isinstance(ending, Ended)
        assert ending.outcome is Outcome.LENGTH, ending
        found[rid] = (
            [token_id for delta in deltas for token_id in delta.token_ids],
            [one for delta in deltas for one in delta.logprobs],
            [one for delta in deltas for one in delta.prompt_logprobs],
            ending.usage.num_retractions,
        )
    loop.close()
    return found


def test_an_answer_is_the_same_bits_however_it_is_computed(demo_model: Path) -> None:
    corridor = MemoryCorridor()
    loop = build_worker(config(demo_model, threads=1), corridor.engine, around())
    alone = answers(loop, corridor, alone=True)
    assert [len(tokens) for tokens, *_ in alone.values()] == [40] * 4
    assert [len(scored) for _, _, scored, _ in alone.values()] == [6, 70, 3, 37]

    corridor = MemoryCorridor()
    small = config(demo_model, threads=2, max_step_tokens=24, max_total_tokens=144)
    loop = build_worker(small, corridor.engine, around())
    loop._scheduler._limits = dataclasses.replace(loop._scheduler._limits, growth_tokens=0)
    crowded = answers(loop, corridor, alone=False)
    assert sum(retracted for *_, retracted in crowded.values()) >= 1
    for rid, answer in alone.items():
        assert crowded[rid][:3] == answer[:3], rid


def test_the_facts_are_those_of_the_model_and_the_settings(demo_model: Path) -> None:
    loop = build_worker(config(demo_model, kv_dtype="f32"), MemoryCorridor().engine, around())
    facts = loop.facts
    assert (facts.architecture, facts.model_type) == ("llama", "llama")
    assert (facts.vocab_size, facts.max_context_tokens) == (49152, 1024)
    assert (facts.num_kv_tokens, facts.kv_dtype) == (2048, "f32")
    assert 2 in facts.eos_ids
    assert facts.max_requests == 64 + 1024
    loop.close()


def test_the_limits_of_the_scheduler_are_those_of_the_settings(demo_model: Path) -> None:
    asked = config(
        demo_model,
        max_queued_requests=9,
        max_sessions=3,
        session_timeout_s=7.5,
        session_busy="refuse",
    )
    loop = build_worker(asked, MemoryCorridor().engine, around())
    limits = loop._scheduler._limits
    assert (limits.max_running, limits.max_queued) == (64, 9)
    assert (limits.max_sessions, limits.session_busy) == (3, "refuse")
    assert (limits.session_timeout_s, limits.queue_timeout_s) == (7.5, math.inf)
    # This model's BOS begins every message of a chat, and its tokenizer puts none before a prompt.
    assert limits.bos_id is None
    assert 2 in limits.eos_ids
    loop.close()


def test_a_turn_gets_the_same_bits_as_a_request_with_the_whole_prompt(demo_model: Path) -> None:
    corridor = MemoryCorridor()
    loop = build_worker(config(demo_model), corridor.engine, around())
    worker = corridor.connect(HERE)
    loop._scheduler.open_session(OpenSession("s"), 0.0)
    how = msgspec.structs.replace(sampling(12), temperature=0.0)
    wanted = LogprobsWanted(chosen=True)

    def run(rid: str, ids: tuple[int, ...], turn: SessionTurn | None) -> list[Event]:
        worker.send(request(rid, ids, how, turn=turn, logprobs=wanted))
        while loop.step():
            pass
        said = [message for message in worker.receive() if isinstance(message, Outputs)]
        return [output.event for message in said for output in message.outputs]

    def tokens(events: list[Event]) -> list[tuple[int, ...]]:
        return [event.token_ids for event in events if isinstance(event, Delta)]

    first = run("a", (1, 504, 3575, 282, 4649, 314), SessionTurn("s"))
    # A turn that is cancelled half-way leaves nothing behind.
    worker.send(request("lost", (7, 8), how, turn=SessionTurn("s", RequestId("a"))))
    for _ in range(4):
        loop.step()
    worker.send(Cancel(HERE, serial_of("lost"), is_disconnect=True))
    loop.step()
    worker.receive()
    second = run("b", (284, 260), SessionTurn("s", RequestId("a")))
    answer = [token_id for ids in tokens(first) for token_id in ids]
    whole = (1, 504, 3575, 282, 4649, 314, *answer, 284, 260)
    # All of the history: its last token was computed for the turn that is lost.
    assert second[1] == Started(18, prompt_ids=whole)
    loop._scheduler.flush()
    alone = run("c", whole, None)
    assert alone[1] == Started(0)
    assert second[2:-1] == alone[2:-1]
    # Tokens that were foreseen come several at a time.
    assert sum(map(len, tokens(alone))) == 12
    loop.close()


def test_a_context_beyond_the_model_s_is_refused(demo_model: Path) -> None:
    asked = ServeConfig(model=ModelConfig(model=str(demo_model), context_length=1 << 20))
    with pytest.raises(ConfigError, match="context_length=1048576: this model takes at most"):
        build_worker(asked, MemoryCorridor().engine, around())


def test_a_cache_that_does_not_fit_is_refused_with_numbers(demo_model: Path) -> None:
    asked = config(demo_model, max_total_tokens=1_000_000)
    with pytest.raises(ModelError, match=r"max_total_tokens=1000000 needs .* GiB"):
        build_worker(asked, MemoryCorridor().engine, around())


def test_a_small_step_runs_fewer_requests(
    demo_model: Path, caplog: pytest.LogCaptureFixture
) -> None:
    loop = build_worker(config(demo_model, max_step_tokens=40), MemoryCorridor().engine, around())
    assert loop._scheduler._limits.max_running == 24
    assert "max_running_requests is 24" in caplog.text
    loop.close()
