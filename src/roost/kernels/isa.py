"""Which instruction set the kernels use: the best that this machine runs, unless one is named."""

from typing import Final

from roost import _native
from roost.core.errors import ConfigError

# Names what the kernels compute, to the bit: equal numbers, equal results.
NUMERICS: Final[int] = _native.NUMERICS


def available() -> tuple[str, ...]:
    """Instruction sets compiled in that this machine runs, slowest first."""
    return tuple(_native.available_isas())


def choose(name: str | None) -> str:
    """`name`, or the fastest when None. Raises ConfigError when this machine does not run it."""
    names = available()
    if name is None:
        return names[-1]
    if name not in names:
        raise ConfigError(f"isa={name}: this machine runs {', '.join(names)}")
    return name
