"""What the API layer and the library hand in: prompts, and what is wanted of each."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from roost.core.params import SamplingParams
from roost.core.request import NO_LOGPROBS, LogprobsWanted


@dataclass(frozen=True, slots=True)
class TextPrompt:
    """Text to be tokenised; the model's BOS is added unless `add_special` is False."""

    text: str
    add_special: bool = True


@dataclass(frozen=True, slots=True)
class TokenPrompt:
    """Token ids, taken as they are."""

    ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """Messages for the model's chat template. Rendered and tokenised off the event loop."""

    messages: tuple[Mapping[str, object], ...]
    tools: tuple[Mapping[str, object], ...] | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    template_kwargs: Mapping[str, object] = field(default_factory=dict)


Prompt = TextPrompt | TokenPrompt | ChatPrompt


@dataclass(frozen=True, slots=True)
class Wish:
    """One prompt and what is wanted of it; `sampling.n` answers.

    rid: of this prompt's answer. With n > 1 it names the group of answers `rid_0`, `rid_1` …
    None: from the ask's rid, or drawn. namespace: only those of the same one share a cache.
    """

    prompt: Prompt
    sampling: SamplingParams = field(default_factory=SamplingParams)
    logprobs: LogprobsWanted = NO_LOGPROBS
    rid: str | None = None
    namespace: str = ""


@dataclass(frozen=True, slots=True)
class SessionWish:
    """The session that an ask is a turn of; with several answers, each is a turn of its own.

    parent: the rid of the turn that it goes on from; None: a new root. offset: how many tokens of
    that turn are kept, counted from its beginning (> 0) or its end (< 0); 0: all. replaces: when
    this turn has ended well, what else followed from the parent is dropped. drops_output: the
    parent's answer is left out.
    """

    session_id: str
    parent: str | None = None
    offset: int = 0
    replaces: bool = False
    drops_output: bool = False


@dataclass(frozen=True, slots=True)
class Ask:
    """One call of a client: one wish, or a list of them that is served all or none.

    Parameters
    ----------
    wishes:
        At least one. Answers are numbered in order: the n of the first wish, of the second, …
        (with one n for all: index = prompt · n + sample).
    rid:
        Names the whole call; aborting it aborts every answer of it. With one answer it is that
        answer's rid, else the answers are `rid_0`, `rid_1` …  None: drawn.
    timeout_s:
        From now to the end of the last answer. None: the server's.
    overflow:
        "refuse": prompt + max_new_tokens over the context raises TooManyTokens. "clamp": it is
        cut to what fits. A prompt that alone does not fit is refused either way.
    trace:
        W3C traceparent of the caller, or empty.
    session:
        What it goes on from; the prompts are then only what is new.
    tenant:
        Who asks, where keys tell; requests of one share what is theirs.
    """

    wishes: tuple[Wish, ...]
    rid: str | None = None
    priority: int = 0
    timeout_s: float | None = None
    overflow: Literal["refuse", "clamp"] = "refuse"
    trace: str = ""
    session: SessionWish | None = None
    tenant: str = ""

    @classmethod
    def one(
        cls,
        prompt: Prompt,
        sampling: SamplingParams | None = None,
        *,
        logprobs: LogprobsWanted = NO_LOGPROBS,
        rid: str | None = None,
    ) -> "Ask":
        """An ask of a single prompt."""
        wish = Wish(prompt, SamplingParams() if sampling is None else sampling, logprobs)
        return cls(wishes=(wish,), rid=rid)
