"""Which answers an ask has, and what each is called. Lists and n > 1 are split here."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from roost.core.errors import RequestError
from roost.core.params import MAX_CHOICES
from roost.core.request import HEALTH_PREFIX, RequestId
from roost.frontend.ask import Ask, Wish

# One call cannot take the whole house: each answer costs a slot of the queue.
MAX_ANSWERS: Final = 4096
MAX_RID_CHARS: Final = 256


@dataclass(frozen=True, slots=True)
class AnswerName:
    """One answer: its rid, the group that it is aborted with, its prompt, its number there."""

    rid: RequestId
    group: str
    prompt_index: int
    sample_index: int


def name_answers(ask: Ask, draw: Callable[[], str]) -> tuple[AnswerName, ...]:
    """The answers of `ask`, in order. `draw` gives a name nobody else has.

    Raises RequestError for no wish, an n out of range, too many answers, or a bad rid.
    """
    if not ask.wishes:
        raise RequestError("The list of prompts is empty.")
    for wish in ask.wishes:
        _check_n(wish)
    num_answers = sum(wish.sampling.n for wish in ask.wishes)
    if num_answers > MAX_ANSWERS:
        raise RequestError(
            f"One call may ask for at most {MAX_ANSWERS} answers, this one asks for {num_answers}."
        )
    own = [wish.rid for wish in ask.wishes if wish.rid is not None]
    for rid in (*own, *(() if ask.rid is None else (ask.rid,))):
        _check_rid(rid)
    if own and (ask.rid is not None or len(own) != len(ask.wishes)):
        raise RequestError("Give one rid for all prompts, or one for each.", param="rid")
    if len(set(own)) != len(own):
        raise RequestError("The rids of one call must differ.", param="rid")
    names: list[AnswerName] = []
    whole = (draw() if ask.rid is None else ask.rid) if not own else ""
    for prompt_index, wish in enumerate(ask.wishes):
        base = whole if wish.rid is None else wish.rid
        is_alone = num_answers == 1 or (wish.rid is not None and wish.sampling.n == 1)
        for sample_index in range(wish.sampling.n):
            number = sample_index if wish.rid is not None else len(names)
            rid = base if is_alone else f"{base}_{number}"
            names.append(AnswerName(RequestId(rid), base, prompt_index, sample_index))
    if len({name.rid for name in names}) != len(names):
        raise RequestError("The rids of one call must differ.", param="rid")
    return tuple(names)


def _check_n(wish: Wish) -> None:
    n = wish.sampling.n
    if not 1 <= n <= MAX_CHOICES:
        raise RequestError(f"n must be in [1, {MAX_CHOICES}], got {n}.", param="n")


def _check_rid(rid: str) -> None:
    if not 1 <= len(rid) <= MAX_RID_CHARS:
        raise RequestError(f"rid must have 1 to {MAX_RID_CHARS} characters.", param="rid")
    if not rid.isprintable():
        raise RequestError("rid must be of printable characters.", param="rid")
    if rid.startswith(HEALTH_PREFIX):
        raise RequestError(f"rid must not begin with {HEALTH_PREFIX}.", param="rid")
