"""roost: an LLM serving engine. `from roost import Engine, SamplingParams` is the library."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from roost.core.params import SamplingParams
    from roost.launch.inprocess import Engine

__version__ = "0.1.0"
__all__ = ["Engine", "SamplingParams", "__version__"]


def __getattr__(name: str) -> object:
    # Late, so that `import roost` costs nothing and the command line starts at once.
    if name == "Engine":
        from roost.launch.inprocess import Engine

        return Engine
    if name == "SamplingParams":
        from roost.core.params import SamplingParams

        return SamplingParams
    raise AttributeError(f"module 'roost' has no attribute {name!r}")
