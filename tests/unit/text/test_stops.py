import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roost.core.errors import RequestError
from roost.text import HoldBack, StopMatch, StopMatcher
from roost.text.stops import REGEX_WINDOW_BYTES


def feed(matcher: StopMatcher, *tokens: bytes) -> StopMatch | None:
    for token in tokens:
        if (match := matcher.feed(token)) is not None:
            return match
    return None


def test_a_string_is_found_across_tokens() -> None:
    matcher = StopMatcher([b"\n\nUser:"])
    assert matcher.feed(b"Hello.\n") is None
    assert matcher.feed(b"\nUse") is None
    assert matcher.feed(b"r: x") == StopMatch("\n\nUser:", False, 6, 13)


def test_what_ends_first_wins_then_what_begins_first() -> None:
    assert feed(StopMatcher([b"abc", b"b"]), b"xabc") == StopMatch("b", False, 2, 3)
    assert feed(StopMatcher([b"bc", b"abc"]), b"xabc") == StopMatch("abc", False, 1, 4)
    assert feed(StopMatcher([b"abc", b"bc"]), b"xabc") == StopMatch("abc", False, 1, 4)
    assert feed(StopMatcher([b"c"], ["ab"]), b"abc") == StopMatch("ab", True, 0, 2)


def test_a_stop_that_overlaps_itself_is_found() -> None:
    assert feed(StopMatcher([b"aab"]), b"a", b"a", b"a", b"b") == StopMatch("aab", False, 1, 4)


def test_a_beginning_that_overlaps_itself_is_held() -> None:
    hold = HoldBack([b"aab"])
    assert [hold.feed(token) for token in (b"a", b"a", b"a", b"c")] == [b"", b"", b"a", b"aac"]
    assert hold.feed(b"a") == b""
    assert hold.feed(b"acb") == b"aacb"
    assert HoldBack([b"aabaaac"]).feed(b"aabaaab") == b"aaba"


def test_offsets_are_bytes() -> None:
    match = feed(StopMatcher(["né".encode()]), "é".encode(), b"n\xc3", b"\xa9")
    assert match == StopMatch("né", False, 2, 5)


def test_an_expression_is_found_across_tokens() -> None:
    matcher = StopMatcher([], [r"\d{3}-\d{4}"])
    assert feed(matcher, b"call 55", b"5-01", b"99 now") == StopMatch(r"\d{3}-\d{4}", True, 5, 13)


def test_an_expression_sees_what_stands_before_it() -> None:
    assert feed(StopMatcher([], [r"\bend"]), b"b", b"end") is None
    assert feed(StopMatcher([], [r"\bend"]), b"b ", b"end") == StopMatch(r"\bend", True, 2, 5)
    assert feed(StopMatcher([], ["^x"]), b"a", b"x") is None
    assert feed(StopMatcher([], ["(?m)^x"]), b"a\n", b"x") == StopMatch("(?m)^x", True, 2, 3)


def test_an_expression_may_need_the_byte_behind_its_match() -> None:
    assert feed(StopMatcher([], [r"-\b"]), b"-", b"a") == StopMatch(r"-\b", True, 0, 1)


def test_expressions_see_a_bounded_tail() -> None:
    long = b"x" * (REGEX_WINDOW_BYTES - 2)
    assert feed(StopMatcher([], ["<x*>"]), b"<" + long + b">") is not None
    assert feed(StopMatcher([], ["<x*>"]), b"<", long, b">") is not None
    assert feed(StopMatcher([], ["<x*>"]), b"<", long, b"xxx", b">") is None


def test_skipped_bytes_end_nothing() -> None:
    matcher = StopMatcher([b"ab", b"cd"], ["e+f"])
    matcher.skip(b"ab ef c")
    assert matcher.feed(b"x") is None
    matcher.skip(b"c")
    assert matcher.feed(b"d") == StopMatch("cd", False, 8, 10)


def test_an_expression_begins_after_skipped_bytes() -> None:
    matcher = StopMatcher([], ["e+f"])
    matcher.skip(b"ee")
    assert matcher.feed(b"ef") == StopMatch("e+f", True, 2, 4)


def test_no_stops_cost_nothing() -> None:
    matcher = StopMatcher([])
    assert matcher.feed(b"x" * 100) is None
    assert matcher._tail == b""


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        ("(a", r"missing \)"),
        ("(?<=a)b", "invalid perl operator"),
        (r"(a)\1", "invalid escape sequence"),
        ("a*", "matches the empty string"),
        (r"\pL{250}", "too large"),
        ("a{1001}", "invalid repetition size"),
        ("\ud800", "not valid Unicode"),
    ],
)
def test_a_bad_expression_is_the_callers_fault(pattern: str, reason: str) -> None:
    with pytest.raises(RequestError, match=reason) as info:
        StopMatcher([], [pattern])
    assert info.value.param == "stop_regex"
    assert info.value.http_status == 400


def test_what_may_become_a_stop_is_held_back() -> None:
    hold = HoldBack([b"</end>", b"\n\n"])
    assert hold.feed(b"text") == b"text"
    assert hold.feed(b" </e") == b" "
    assert hold.feed(b"m>\n") == b"</em>"
    assert hold.feed(b"x") == b"\nx"
    assert hold.feed(b"y\n") == b"y"
    assert hold.finish() == b"\n"


def test_nothing_from_a_complete_stop_on_is_sent() -> None:
    hold = HoldBack([b"ab"])
    assert hold.feed(b"xxabcdef") == b"xx"
    assert hold.finish(2) == b""


def test_a_stop_that_did_not_count_is_sent_with_what_follows() -> None:
    hold = HoldBack([b"ab"])
    assert hold.feed(b"xab") == b"x"
    assert hold.feed(b"c") == b"abc"
    assert hold.finish() == b""


def test_a_stop_can_be_kept_in_the_text() -> None:
    hold = HoldBack([b"ab"])
    hold.feed(b"xabc")
    assert hold.finish(3) == b"ab"


def test_an_expression_holds_back_what_it_could_span() -> None:
    hold = HoldBack([], [r"\d{3}"])
    assert hold.feed(b"abcdef") == b"abcd"
    assert hold.feed(b"12") == b"ef"
    assert hold.feed(b"3") == b""
    assert hold.finish(6) == b""
    unbounded = HoldBack([], ["<.*>"])
    assert unbounded.feed(b"x" * REGEX_WINDOW_BYTES) == b"x"
    assert unbounded.finish() == b"x" * (REGEX_WINDOW_BYTES - 1)


def test_an_expression_that_did_not_count_may_count_from_its_second_byte() -> None:
    # The engine skipped the first byte, and matches at the second; the edge does not know that.
    matcher, hold = StopMatcher([], ["b[ab]{1,2}"]), HoldBack([], ["b[ab]{1,2}"])
    matcher.skip(b"b")
    assert matcher.feed(b"b") is None
    assert hold.feed(b"bb") == b""
    assert matcher.feed(b"aa") == StopMatch("b[ab]{1,2}", True, 1, 4)
    assert hold.feed(b"aa") == b"b"
    assert hold.finish(1) == b""


STRINGS = st.lists(st.text("abé", min_size=1, max_size=4).map(str.encode), max_size=3)
REGEXES = st.lists(
    st.sampled_from(
        ["ab", "a+b", "(?:ab|ba)a", r"\bb", "b[ab]{1,2}", r"é\b", "aé?b", "(?i)B{2}", "a.b"]
    ),
    max_size=2,
)
TOKENS = st.lists(st.text("ab é\n", max_size=3).map(str.encode), max_size=20)


def first_string(stops: list[bytes], text: bytes) -> tuple[int, int] | None:
    """(end, start) by the definition."""
    spans = [(m.end(), m.start()) for s in stops for m in re.finditer(re.escape(s), text)]
    overlapping = [
        (at + len(s), at) for s in stops for at in range(len(text)) if text.startswith(s, at)
    ]
    assert set(spans) <= set(overlapping)
    return min(overlapping, default=None)


@given(STRINGS, TOKENS)
def test_strings_are_found_wherever_tokens_are_cut(stops: list[bytes], tokens: list[bytes]) -> None:
    match = feed(StopMatcher(stops), *tokens)
    expected = first_string(stops, b"".join(tokens))
    assert (None if match is None else (match.end, match.start)) == expected


@given(STRINGS, TOKENS)
def test_no_more_is_held_than_may_become_a_string(stops: list[bytes], tokens: list[bytes]) -> None:
    hold, text, sent = HoldBack(stops), b"", b""
    for token in tokens:
        text += token
        sent += hold.feed(token)
        if first_string(stops, text) is not None:
            return
        starts = {s[:n] for s in stops for n in range(len(s))} | {b""}
        held = max(len(start) for start in starts if text.endswith(start))
        assert sent == text[: len(text) - held]


@given(STRINGS, REGEXES, TOKENS, st.integers(0, 6), st.data())
def test_no_part_of_a_stop_is_sent_and_nothing_before_it_is_lost(
    stops: list[bytes],
    regexes: list[str],
    tokens: list[bytes],
    num_skipped: int,
    data: st.DataObject,
) -> None:
    matcher, hold = StopMatcher(stops, regexes), HoldBack(stops, regexes)
    sent, waiting, generated = b"", b"", b""
    cut: int | None = None
    for order, token in enumerate(tokens):
        generated += token
        waiting += token
        if order < num_skipped:
            matcher.skip(token)
        elif (match := matcher.feed(token)) is not None:
            cut = match.start
        # Several steps may reach the edge at once.
        if cut is not None or data.draw(st.booleans()):
            sent += hold.feed(waiting)
            waiting = b""
        if cut is not None:
            break
    sent += hold.feed(waiting)
    assert generated[:cut].startswith(sent)
    sent += hold.finish(cut)
    assert sent == generated[:cut]
