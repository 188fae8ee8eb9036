"""However an answer is cut into events and read, its text is the same, and no stop shows."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from roost.core.events import Accepted, Delta, Ended, Started
from roost.core.outcome import Outcome
from roost.core.request import RequestId
from roost.frontend.piece import AnswerHead, Piece
from roost.frontend.stream import AnswerStream
from roost.text import StopMatcher, TextStream

HEAD = AnswerHead(0, 0, RequestId("r"), 1, (1,), None, 100, 0.0)


class Pieces:
    """A vocabulary of byte strings; those of one byte may be parts of characters."""

    def __init__(self, pieces: Sequence[bytes]) -> None:
        self._pieces = pieces

    def text_bytes(self, token_id: int, *, skip_special: bool) -> bytes:
        return self._pieces[token_id]


ALPHABET = [b"a", b"b", b"ab", b"ba", b"aab", "é".encode(), *(bytes([b]) for b in "é€".encode())]
TOKENS = st.lists(st.integers(0, len(ALPHABET) - 1), max_size=30)
STOPS = st.lists(st.sampled_from([b"a", b"ab", b"bb", b"aba", "é".encode()]), max_size=2)


def engine(ids: list[int], stops: list[bytes]) -> tuple[list[int], Ended]:
    """What the engine makes of a model that says `ids`: the tokens up to a stop, and the end."""
    matcher = StopMatcher(stops)
    for number, token_id in enumerate(ids):
        match = matcher.feed(ALPHABET[token_id])
        if match is not None:
            return ids[: number + 1], Ended(
                Outcome.STOP, matched=match.matched, text_bytes=match.start
            )
    return ids, Ended(Outcome.LENGTH)


def streamed(
    ids: list[int], ended: Ended, stops: list[bytes], cuts: set[int], *, no_stop_trim: bool
) -> list[Piece]:
    """The pieces of a reader who comes by after the tokens that `cuts` name, and at the end."""
    text = TextStream(Pieces(ALPHABET), stops=stops)
    stream = AnswerStream(HEAD, text, no_stop_trim=no_stop_trim)
    stream.see(Accepted(), 0.0)
    stream.see(Started(0), 0.0)
    pieces: list[Piece] = []
    for number, token_id in enumerate(ids):
        stream.see(Delta(number, (token_id,)), float(number))
        # The last token and the ending come in one message, and so are read together.
        if number in cuts and number < len(ids) - 1:
            pieces.append(stream.take())
            assert not stream.has_piece
    stream.see(ended, float(len(ids)))
    return [*pieces, stream.take()]


@given(ids=TOKENS, stops=STOPS, cuts=st.sets(st.integers(0, 30)))
def test_the_text_does_not_depend_on_when_it_is_read(
    ids: list[int], stops: list[bytes], cuts: set[int]
) -> None:
    said, ended = engine(ids, stops)
    pieces = streamed(said, ended, stops, cuts, no_stop_trim=False)
    data = b"".join(ALPHABET[i] for i in said)
    whole = data if ended.text_bytes < 0 else data[: ended.text_bytes]
    assert "".join(p.text for p in pieces) == whole.decode(errors="replace")
    assert [i for p in pieces for i in p.token_ids] == said
    assert [p.ended for p in pieces] == [None] * (len(pieces) - 1) + [ended]
    assert pieces[-1].num_tokens == len(said)


@given(ids=TOKENS, stops=STOPS, cuts=st.sets(st.integers(0, 30)))
def test_a_stop_that_is_not_to_be_cut_stays(
    ids: list[int], stops: list[bytes], cuts: set[int]
) -> None:
    said, ended = engine(ids, stops)
    pieces = streamed(said, ended, stops, cuts, no_stop_trim=True)
    whole = b"".join(ALPHABET[i] for i in said).decode(errors="replace")
    assert "".join(p.text for p in pieces) == whole


@given(ids=TOKENS.filter(bool), cuts=st.sets(st.integers(0, 30)))
def test_a_stop_token_is_cut_off_whole(ids: list[int], cuts: set[int]) -> None:
    before = b"".join(ALPHABET[i] for i in ids[:-1])
    ended = Ended(Outcome.STOP, matched=ids[-1], text_bytes=len(before))
    pieces = streamed(ids, ended, [], cuts, no_stop_trim=False)
    assert "".join(p.text for p in pieces) == before.decode(errors="replace")


def test_a_request_of_no_tokens_has_its_prompt_logprobs_and_an_ending() -> None:
    stream = AnswerStream(HEAD, TextStream(Pieces(ALPHABET)), no_stop_trim=False)
    stream.see(Accepted(), 0.0)
    assert not stream.has_piece
    stream.see(Started(3), 0.0)
    stream.see(Delta(0, ()), 0.0)
    stream.see(Ended(Outcome.LENGTH), 0.0)
    piece = stream.take()
    assert (piece.text, piece.token_ids, piece.num_tokens) == ("", (), 0)
    assert (piece.num_cached_tokens, piece.first_token_s) == (3, None)


def test_the_whole_prompt_of_a_sessions_turn_comes_with_its_first_piece() -> None:
    stream = AnswerStream(HEAD, TextStream(Pieces(ALPHABET)), no_stop_trim=False)
    stream.see(Accepted(), 0.0)
    stream.see(Started(0, prompt_ids=(4, 5, 6)), 0.0)
    assert not stream.has_piece
    stream.see(Delta(0, (0,)), 1.0)
    assert stream.take().prompt_ids == (4, 5, 6)
    stream.see(Delta(1, (1,)), 2.0)
    assert stream.take().prompt_ids is None
    stream.see(Ended(Outcome.LENGTH), 3.0)
    assert stream.take().prompt_ids is None
