"""The answers of an ask as they begin: a head each, and an empty stream."""

from collections.abc import Sequence

from roost.frontend.ask import Ask
from roost.frontend.intake import Prepared
from roost.frontend.naming import AnswerName
from roost.frontend.piece import AnswerHead
from roost.frontend.stream import AnswerStream
from roost.text import TextStream, Tokenizer


def prepared_streams(prepared: Sequence[Prepared], arrival_s: float) -> list[AnswerStream]:
    """Of prompts that were tokenised and checked."""
    return [
        AnswerStream(
            AnswerHead(
                index=index,
                prompt_index=one.name.prompt_index,
                rid=one.name.rid,
                seed=one.sampling.seed,
                prompt_ids=one.prompt_ids,
                prompt_text=one.prompt_text,
                max_new_tokens=one.sampling.max_new_tokens,
                arrival_s=arrival_s,
            ),
            one.text,
            no_stop_trim=one.sampling.no_stop_trim,
        )
        for index, one in enumerate(prepared)
    ]


def unprepared_streams(
    ask: Ask, names: Sequence[AnswerName], tokenizer: Tokenizer, arrival_s: float
) -> list[AnswerStream]:
    """Of answers that ended before their prompts were looked at: there is nothing to say."""
    return [
        AnswerStream(
            AnswerHead(
                index=index,
                prompt_index=name.prompt_index,
                rid=name.rid,
                seed=ask.wishes[name.prompt_index].sampling.seed or 0,
                prompt_ids=(),
                prompt_text=None,
                max_new_tokens=0,
                arrival_s=arrival_s,
            ),
            TextStream(tokenizer),
            no_stop_trim=False,
        )
        for index, name in enumerate(names)
    ]
