"""One answer as it comes: events in, pieces out. No IO, no clock."""

from roost.core.events import Accepted, Delta, Ended, Event, Started, TokenLogprob
from roost.frontend.piece import AnswerHead, Piece
from roost.text import TextStream


class AnswerStream:
    """Gathers what the engine says of one request until it is taken.

    Text is made when a piece is taken, from all tokens that came since the last one. So a reader
    who is slow gets larger pieces, and what waits here is bounded by the answer's length. And the
    tokens of a step are always seen together with the ending of that step, which may cut them.
    """

    def __init__(self, head: AnswerHead, text: TextStream, *, no_stop_trim: bool) -> None:
        self.head = head
        self._text = text
        self._no_stop_trim = no_stop_trim
        self._token_ids: list[int] = []
        self._logprobs: list[TokenLogprob] = []
        self._prompt_logprobs: tuple[TokenLogprob, ...] = ()
        self._prompt_ids: tuple[int, ...] | None = None
        self._num_tokens = 0
        self._num_cached_tokens = 0
        self._first_token_s: float | None = None
        self._last_token_s: float | None = None
        # Whether there is a piece to take.
        self.has_piece = False
        self.is_accepted = False
        self.is_decided = False
        self.ended: Ended | None = None

    def see(self, event: Event, now_s: float) -> None:
        """Take one event, in order; nothing comes after Ended."""
        assert self.ended is None, "an event after the ending"
        match event:
            case Delta():  # the most frequent by far
                self._token_ids += event.token_ids
                if event.logprobs:
                    self._logprobs += event.logprobs
                if event.prompt_logprobs:
                    self._prompt_logprobs += event.prompt_logprobs
                if event.token_ids:
                    self._last_token_s = now_s
                    if self._first_token_s is None:
                        self._first_token_s = now_s
                self.has_piece = True
            case Accepted():
                self.is_accepted = self.is_decided = True
            case Started(num_cached_tokens=num, prompt_ids=ids):
                self._num_cached_tokens = num
                self._prompt_ids = ids or None
            case Ended():
                self.ended = event
                self.is_decided = self.has_piece = True

    def take(self) -> Piece:
        """What is new since the last piece; the last one has the ending. Only when `has_piece`."""
        assert self.has_piece, "there is no piece to take"
        text = self._last_text(self.ended) if self.ended else self._text.feed(self._token_ids)
        self._num_tokens += len(self._token_ids)
        piece = Piece(
            index=self.head.index,
            text=text,
            token_ids=tuple(self._token_ids),
            logprobs=tuple(self._logprobs),
            prompt_logprobs=self._prompt_logprobs,
            prompt_ids=self._prompt_ids,
            ended=self.ended,
            num_tokens=self._num_tokens,
            num_cached_tokens=self._num_cached_tokens,
            first_token_s=self._first_token_s,
            last_token_s=self._last_token_s,
        )
        self._token_ids = []
        if self._logprobs:
            self._logprobs = []
        self._prompt_logprobs, self._prompt_ids = (), None
        self.has_piece = False
        return piece

    def _last_text(self, ended: Ended) -> str:
        """The rest of the text, up to the stop if that is cut off."""
        cut = ended.text_bytes
        if cut < 0 or self._no_stop_trim:
            return self._text.feed(self._token_ids) + self._text.finish()
        # A stop that is a token of its own is nothing that the text could have warned of.
        is_token = isinstance(ended.matched, int)
        shown = self._token_ids[:-1] if is_token else self._token_ids
        return self._text.feed(shown) + self._text.finish(cut)
