"""The model in this process, for `roost chat` without a server."""

from collections.abc import Generator, Sequence

from rich.console import Console

from roost.core.config import ServeConfig
from roost.core.params import SamplingParams
from roost.launch.inprocess import Engine
from roost.launch.progress import LoadingBar
from roost.launch.talkers import ChatOptions, Message


class LocalTalker:
    """Loads the model; closing gives it back. Raises ModelError, ConfigError."""

    def __init__(self, config: ServeConfig, options: ChatOptions) -> None:
        with LoadingBar(Console(stderr=True)) as bar:
            self._engine = Engine.from_config(config, bar.update)
        self._name = config.model.model
        self._sampling = SamplingParams(
            temperature=options.temperature, max_new_tokens=options.max_tokens, seed=options.seed
        )

    def __enter__(self) -> "LocalTalker":
        return self

    def __exit__(self, *exc: object) -> None:
        self._engine.close()

    def name(self) -> str:
        facts = self._engine.facts
        return f"{self._name} in this process, {facts.isa}, {facts.num_threads} threads"

    def answer(self, messages: Sequence[Message]) -> Generator[str, None, None]:
        for piece in self._engine.stream(messages=messages, sampling=self._sampling):
            yield piece.text
