"""A hyperparameter has its kind, or the error names its key, its value and its file."""

from pathlib import Path

import pytest

from roost.core.errors import ModelError, UnsupportedModel
from roost.models.fields import Fields

FIELDS = Fields(
    Path("m.gguf"),
    {
        "a.count": 7,
        "a.same": [3, 3, 3],
        "a.mixed": [3, 4],
        "a.zero": 0,
        "a.number": 2,
        "a.nan": float("nan"),
        "a.yes": True,
        "a.text": "silu",
        "a.null": None,
        "a.part": {"inner": 5},
    },
    "a.",
)


def test_values_of_the_right_kind_are_given() -> None:
    assert FIELDS.count("count") == 7
    assert FIELDS.count("same") == 3
    assert FIELDS.count("absent", 9) == 9
    assert FIELDS.count("null", 9) == 9
    assert FIELDS.number("number") == 2.0
    assert FIELDS.text("text") == "silu"
    assert FIELDS.truth("yes") is True
    assert FIELDS.has("count")
    assert not FIELDS.has("null")
    part = FIELDS.part("part")
    assert part is not None
    assert part.count("inner") == 5
    assert FIELDS.part("absent") is None


@pytest.mark.parametrize(
    ("read", "message"),
    [
        (lambda: FIELDS.count("absent"), "m.gguf: the hyperparameter a.absent is missing"),
        (lambda: FIELDS.count("zero"), "m.gguf: a.zero is 0, not a whole number from 1 on"),
        (lambda: FIELDS.count("yes"), "a.yes is True, not a whole number"),
        (lambda: FIELDS.count("mixed"), r"a.mixed is \[3, 4\], not a whole number"),
        (lambda: FIELDS.count("text"), "a.text is 'silu', not a whole number"),
        (lambda: FIELDS.number("nan"), "a.nan is nan, not a finite number above 0"),
        (lambda: FIELDS.number("text"), "a.text is 'silu', not a number"),
        (lambda: FIELDS.text("count"), "a.count is 7, not a text"),
        (lambda: FIELDS.truth("count"), "a.count is 7, not true or false"),
        (lambda: FIELDS.part("count"), "a.count is 7, not a mapping"),
    ],
)
def test_others_are_refused_by_key(read: object, message: str) -> None:
    assert callable(read)
    with pytest.raises(ModelError, match=message):
        read()


def test_a_setting_that_is_not_built_is_unsupported() -> None:
    FIELDS.only("text", "silu")
    FIELDS.only("absent", "silu")
    with pytest.raises(UnsupportedModel, match=r"a\.text is 'silu'; only 'gelu' is supported"):
        FIELDS.only("text", "gelu")
