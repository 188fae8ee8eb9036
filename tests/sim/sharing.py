"""What the prefix cache may and may not have done: it finds nothing that was not there."""

from collections.abc import Sequence

from tests.sim.asked import Asked
from tests.sim.expected import prompts_of
from tests.sim.fake_runner import alone, logprob_of
from tests.sim.house import House

from roost.core import calls
from roost.core.events import Delta, Started, TokenLogprob


class Shared:
    """Everything that anybody in the house can have computed, by namespace."""

    def __init__(self, house: House) -> None:
        self._house = house
        # From when a flush was asked for until it was done: then what ended before is forgotten.
        self._flushes = [
            (called.at_s, called.done_s)
            for called in house.calls
            if isinstance(called.call, calls.FlushCache)
            and called.done is not None
            and called.done.is_ok
        ]
        self._computed: dict[str, list[tuple[Asked, tuple[int, ...]]]] = {}
        for asked in house.asked:
            known = self._computed.setdefault(asked.request.namespace, [])
            for prompt in prompts_of(house, asked):
                # Whatever it came to, it said no more than this.
                known.append((asked, (*prompt, *alone(prompt, asked.request.sampling))))

    def wrong_with(self, asked: Asked, prompt: tuple[int, ...]) -> list[str]:
        """prompt: its whole one, as the engine knew it."""
        started = [event for _, event in asked.seen if isinstance(event, Started)]
        if not started:
            return []
        num_cached = started[0].num_cached_tokens
        wrong: list[str] = []
        if num_cached >= len(prompt):
            wrong.append(f"all {num_cached} tokens of its prompt were cached")
        most = max(
            (
                _num_common(prompt, tokens)
                for other, tokens in self._computed[asked.request.namespace]
                if other is not asked and not self._is_forgotten(other, asked)
            ),
            default=0,
        )
        if num_cached > most:
            wrong.append(f"{num_cached} tokens were cached, of {most} that were ever computed")
        return wrong

    def _is_forgotten(self, other: Asked, asked: Asked) -> bool:
        """Whether it had ended before a flush which had ended before the one that asks came."""
        gone_s = self._house.gone_s(other)
        return any(
            gone_s < at_s and done_s <= asked.envelope.arrival_s for at_s, done_s in self._flushes
        )


def wrong_scores(asked: Asked, prompt: tuple[int, ...]) -> list[str]:
    """What is wrong with the logprobs of the prompt of one that was answered to its end."""
    first = asked.request.logprobs.prompt_from
    expected = [
        TokenLogprob(token_id, logprob_of(prompt[:at], token_id) if at else None)
        for at, token_id in enumerate(prompt)
        if at >= first >= 0
    ]
    deltas = [event for _, event in asked.seen if isinstance(event, Delta)]
    said = [one for delta in deltas for one in delta.prompt_logprobs]
    return [] if said == expected else [f"its prompt scored {said}, alone {expected}"]


def _num_common(a: Sequence[int], b: Sequence[int]) -> int:
    at = 0
    while at < min(len(a), len(b)) and a[at] == b[at]:
        at += 1
    return at
