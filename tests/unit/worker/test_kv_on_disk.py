"""What the cache gave up comes back from disk, and the answer is the same to the last bit."""

import dataclasses
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from tests.sim.requests import HERE, request, sampling

from roost.core.clock import ManualClock
from roost.core.config import EngineConfig, ModelConfig, ServeConfig
from roost.core.errors import ConfigError
from roost.core.events import Delta, Event, Started
from roost.core.request import LogprobsWanted
from roost.runner import FreeMemory
from roost.wire import MemoryCorridor
from roost.wire.messages import Outputs
from roost.worker import EngineLoop, Surroundings, build_worker

# 16 pages, of which a request of these takes 10.
POOL_TOKENS = 256
PROMPT_TOKENS = 150


def config(model: Path, **engine: object) -> ServeConfig:
    asked = {"max_total_tokens": POOL_TOKENS, **engine}
    return ServeConfig(
        model=ModelConfig(model=str(model), context_length=256),
        engine=msgspec.convert(asked, EngineConfig),
    )


Build = Callable[[ServeConfig, MemoryCorridor], EngineLoop]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Build:
    """Makes an engine. Weights are packed once for all of them."""
    around = Surroundings(
        clock=ManualClock(),
        cache_dir=tmp_path_factory.mktemp("packed"),
        measure_memory=lambda: FreeMemory(1 << 30, "what a test gives"),
    )
    return lambda config, corridor: build_worker(config, corridor.engine, around)


@dataclasses.dataclass(frozen=True)
class Answer:
    num_cached_tokens: int
    deltas: tuple[Delta, ...]


def ask(loop: EngineLoop, corridor: MemoryCorridor, numbers: list[int]) -> list[Answer]:
    """Ask for each after the other has been answered."""
    worker = corridor.connect(HERE)
    answers = []
    for number in numbers:
        prompt = tuple(1000 + 7 * number + i * i % 5000 for i in range(PROMPT_TOKENS))
        wanted = LogprobsWanted(chosen=True)
        worker.send(request(f"r{number}", prompt, sampling(8, seed=number), logprobs=wanted))
        while loop.step():
            pass
        events: list[Event] = [
            output.event
            for message in worker.receive()
            if isinstance(message, Outputs)
            for output in message.outputs
        ]
        (started,) = (event for event in events if isinstance(event, Started))
        deltas = tuple(event for event in events if isinstance(event, Delta))
        answers.append(Answer(started.num_cached_tokens, deltas))
    return answers


@pytest.mark.parametrize("kv_dtype", ["bf16"])
def test_answers_are_the_same_from_disk_and_after_a_restart(
    built: Build, demo_model: Path, tmp_path: Path, kv_dtype: str
) -> None:
    corridor = MemoryCorridor()
    loop = built(config(demo_model, kv_dtype=kv_dtype, prefix_cache="off"), corridor)
    expected = [answer.deltas for answer in ask(loop, corridor, [1, 2, 3])]
    loop.close()

    asked = config(demo_model, kv_dtype=kv_dtype, kv_disk=f"{tmp_path / 'kv'}:64MiB")
    for _ in range(2):
        corridor = MemoryCorridor()
        loop = built(asked, corridor)
        again = ask(loop, corridor, [1, 2, 3, 1, 2, 3])
        loop.close()
        assert [answer.deltas for answer in again] == expected * 2
    # Evicted by the first server, or put away when it ended.
    assert all(answer.num_cached_tokens >= 144 for answer in again)


def test_another_type_of_kv_is_not_read(built: Build, demo_model: Path, tmp_path: Path) -> None:
    place = f"{tmp_path}:64MiB"
    for kv_dtype, num_cached in (("bf16", 0), ("f32", 0), ("bf16", 144)):
        corridor = MemoryCorridor()
        loop = built(config(demo_model, kv_dtype=kv_dtype, kv_disk=place), corridor)
        answers = ask(loop, corridor, [1, 2])
        loop.close()
        assert answers[0].num_cached_tokens == num_cached


def test_a_place_that_cannot_be_used_is_refused(
    built: Build, demo_model: Path, tmp_path: Path
) -> None:
    for asked, words in (
        ({"kv_disk": "somewhere"}, "kv_disk must be DIR:SIZE"),
        ({"kv_disk": f"{tmp_path}:1KiB"}, "too few"),
        ({"kv_disk": f"{tmp_path}:64MiB", "prefix_cache": "off"}, "prefix_cache is off"),
    ):
        with pytest.raises(ConfigError, match=words):
            built(config(demo_model, **asked), MemoryCorridor())
    loop = built(config(demo_model, kv_disk=f"{tmp_path}:64MiB"), MemoryCorridor())
    with pytest.raises(ConfigError, match="in use by another server"):
        built(config(demo_model, kv_disk=f"{tmp_path}:64MiB"), MemoryCorridor())
    loop.close()
