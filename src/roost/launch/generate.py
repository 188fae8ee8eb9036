"""`roost generate`: one prompt, one answer, no server."""

import sys
from dataclasses import dataclass

from rich.console import Console

from roost.core.config import ServeConfig
from roost.core.params import SamplingParams
from roost.launch.inprocess import Engine
from roost.launch.progress import LoadingBar


@dataclass(frozen=True, slots=True)
class GenerateOptions:
    """is_chat: the prompt is a user's message, for the model's chat template."""

    temperature: float
    max_tokens: int
    seed: int | None
    is_chat: bool


def generate(config: ServeConfig, prompt: str, options: GenerateOptions) -> int:
    """Write the answer to standard output as it comes. The exit code; 130 when interrupted."""
    text = sys.stdin.read() if prompt == "-" else prompt
    sampling = SamplingParams(
        temperature=options.temperature, max_new_tokens=options.max_tokens, seed=options.seed
    )
    with LoadingBar(Console(stderr=True)) as bar:
        engine = Engine.from_config(config, bar.update)
    with engine:
        if options.is_chat:
            pieces = engine.stream(messages=[{"role": "user", "content": text}], sampling=sampling)
        else:
            pieces = engine.stream(text, sampling)
        try:
            for piece in pieces:
                sys.stdout.write(piece.text)
                sys.stdout.flush()
        except KeyboardInterrupt:
            print()
            return 130
    print()
    return 0
