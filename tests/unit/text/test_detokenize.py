from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from roost.text import TextStream, Tokenizer, TokenType, VocabKind, VocabSpec
from roost.text.pieces import byte_alphabet

SIGNS = {byte: sign for sign, byte in byte_alphabet().items()}
END = 256
# Every byte is a token, and there is one special token.
BYTES = Tokenizer(
    VocabSpec(
        kind=VocabKind.BYTE_LEVEL,
        pieces=[*(SIGNS[byte] for byte in range(256)), "<end>"],
        types=[TokenType.NORMAL] * 256 + [TokenType.CONTROL],
    )
)
any_ids = st.lists(st.integers(0, END), max_size=40)
mostly_text = st.text(max_size=12).map(lambda text: list(text.encode()))
ids_lists = st.one_of(any_ids, mostly_text)


def chunks(ids: list[int], data: st.DataObject) -> list[list[int]]:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(ids)), max_size=6)))
    edges = [0, *cuts, len(ids)]
    return [ids[a:b] for a, b in pairwise(edges)]


def test_a_character_comes_with_its_last_token() -> None:
    stream = TextStream(BYTES)
    assert [stream.feed([byte]) for byte in "é😀".encode()] == ["", "é", "", "", "", "😀"]
    assert stream.finish() == ""


def test_what_is_not_utf8_becomes_the_replacement_character() -> None:
    stream = TextStream(BYTES)
    assert stream.feed([0xC3]) == ""
    assert stream.feed([ord("a")]) == "\ufffda"
    assert stream.feed([0xF0, 0x9F]) == ""
    assert stream.finish() == "\ufffd"


def test_special_tokens_are_shown_or_skipped() -> None:
    ids = [97, END, 98]
    assert TextStream(BYTES).feed(ids) == "ab"
    assert TextStream(BYTES, skip_special=False).feed(ids) == "a<end>b"


@given(ids_lists, st.booleans(), st.data())
def test_pieces_join_to_the_whole(ids: list[int], skip: bool, data: st.DataObject) -> None:
    stream = TextStream(BYTES, skip_special=skip)
    pieces = [stream.feed(chunk) for chunk in chunks(ids, data)]
    assert "".join(pieces) + stream.finish() == BYTES.decode(ids, skip_special=skip)


def test_the_stream_ends_before_the_stop() -> None:
    stream = TextStream(BYTES, stops=["é!".encode()])
    text = [stream.feed([byte]) for byte in "aé?é!b".encode()[:7]]
    assert text == ["a", "", "", "é?", "", "", ""]
    assert stream.finish(4) == ""


def test_without_stops_the_stream_is_not_delayed() -> None:
    stream = TextStream(BYTES)
    assert [stream.feed([byte]) for byte in b"ab"] == ["a", "b"]
    assert stream.finish() == ""


def test_stops_count_in_the_text_that_is_shown() -> None:
    # The special token is between the two halves of the stop, and is not shown.
    stream = TextStream(BYTES, stops=[b"ab"])
    assert stream.feed([120, 97, END, 98]) == "x"
    assert stream.finish(1) == ""


@given(ids_lists, st.data())
def test_the_streams_pieces_join_to_the_whole(ids: list[int], data: st.DataObject) -> None:
    stream = TextStream(BYTES, stops=[b"aa", "é".encode()], regexes=["b+c"])
    pieces = [stream.feed(chunk) for chunk in chunks(ids, data)]
    assert "".join(pieces) + stream.finish() == BYTES.decode(ids)
