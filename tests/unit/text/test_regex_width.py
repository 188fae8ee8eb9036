import pytest
import re2
from hypothesis import given
from hypothesis import strategies as st

from roost.text.regex_width import max_match_bytes


@pytest.mark.parametrize(
    ("pattern", "width"),
    [
        ("abc", 3),
        ("é", 2),
        ("a|bcd", 3),
        ("(?:ab){2,5}", 10),
        ("(?P<n>a?)b", 2),
        (".", 4),
        (r"\d\w\s", 3),
        (r"\D", 4),
        ("[a-f]", 1),
        ("[a-é]", 2),
        ("[^a]", 4),
        ("(?i)ab", 2),
        ("(?i)ok", 5),  # K is also the Kelvin sign, of three bytes
        ("(?i:s)s", 5),
        ("(?i)[a-f]", 4),
        (r"\bab$", 4),
        ("a*?", None),
        ("a+", None),
        ("a{3,}", None),
        ("[[:alpha:]]", None),
        (r"\pL", None),
        (r"\Qab\E", None),
        ("(?U)a", None),
        ("a(?i)b", None),
    ],
)
def test_widths(pattern: str, width: int | None) -> None:
    assert max_match_bytes(pattern) == width


ATOMS = st.sampled_from(["a", "b", "é", ".", r"\d", r"\w", "[ab1]", "[^a]", "(?i:k)", "[a-é]"])
PATTERNS = st.recursive(
    ATOMS,
    lambda inner: st.one_of(
        st.tuples(inner, inner).map("".join),
        st.tuples(inner, inner).map(lambda pair: f"(?:{pair[0]}|{pair[1]})"),
        st.tuples(inner, st.sampled_from(["?", "{1,3}", "{2}"])).map(lambda p: f"(?:{p[0]}){p[1]}"),
    ),
    max_leaves=5,
)


@given(PATTERNS, st.text("abé1kK\u212a😀 ", max_size=12))
def test_no_match_is_longer(pattern: str, text: str) -> None:
    width = max_match_bytes(pattern)
    match = re2.compile(pattern.encode()).search(text.encode())
    assert width is not None
    assert match is None or match.end() - match.start() <= width
