"""A model that a person can compute by hand, on a KV cache that remembers what was written.

The next token is a checksum of all earlier tokens as the KV pages hold them, and of the seed: a
page that was given to another, or computed twice at the wrong place, changes the answer.
"""

import zlib
from collections.abc import Callable, Sequence

from tests.sim.shelf import Shelf

from roost.core.events import TokenLogprob
from roost.core.params import Sampling
from roost.core.plan import PAGE_TOKENS, BatchPlan, Slice, SliceResult, StepResult

VOCAB_SIZE = 26
EOS_ID = 25
# From this seed on an answer repeats itself for a while, again and again: what drafts are for.
FIRST_REPEATING_SEED = 1000
_PERIOD = 5


def next_token(tokens: Sequence[int], sampling: Sampling, *, are_stops_banned: bool) -> int:
    checksum = zlib.crc32(bytes(tokens), sampling.seed & 0xFFFFFFFF)
    token_id = checksum % VOCAB_SIZE
    is_repeating = sampling.seed >= FIRST_REPEATING_SEED and len(tokens) >= _PERIOD
    if is_repeating and checksum >> 8 & 15:
        token_id = tokens[-_PERIOD]
    while are_stops_banned and token_id in sampling.stop_ids:
        token_id = (token_id + 1) % VOCAB_SIZE
    return token_id


def logprob_of(tokens: Sequence[int], token_id: int) -> float:
    """A number that depends on the tokens before, and on the one it is about."""
    return -(zlib.crc32(bytes((*tokens, token_id))) % 1000) / 100


def letters(token_id: int, skip_special: bool) -> bytes:
    """Tokens 0…24 are the letters a…y; the last is the end of the text, which is special."""
    if token_id == EOS_ID:
        return b"" if skip_special else b"<end>"
    return bytes([ord("a") + token_id])


def alone(
    prompt_ids: Sequence[int], sampling: Sampling, is_stop: Callable[[bytes], bool] | None = None
) -> list[int]:
    """What a request answers when it has the machine for itself."""
    tokens, text = list(prompt_ids), b""
    while (num_generated := len(tokens) - len(prompt_ids)) < sampling.max_new_tokens:
        is_banned = num_generated < sampling.min_new_tokens
        token_id = next_token(tokens, sampling, are_stops_banned=is_banned)
        tokens.append(token_id)
        added = letters(token_id, sampling.skip_special_tokens)
        text += added
        # A token without text ends no stop string, though the text may end with one that is banned.
        has_stop = bool(added and is_stop and is_stop(text))
        if not is_banned and (token_id in sampling.stop_ids or has_stop):
            break
    return tokens[len(prompt_ids) :]


class FakeRunner:
    """Executes plans. `fail_next` makes the next step raise; a rid in `faults` gets a fault."""

    def __init__(self, num_pages: int, shelf: Shelf | None = None) -> None:
        self._shelf = shelf or Shelf()
        self._kv = [[-1] * PAGE_TOKENS for _ in range(num_pages)]
        self.fail_next = False
        self.faults: set[str] = set()
        self.plans: list[BatchPlan] = []
        self.is_closed = False

    def execute(self, plan: BatchPlan) -> StepResult:
        self.plans.append(plan)
        if self.fail_next:
            self.fail_next = False
            raise RuntimeError("the fake runner was told to fail")
        for saved, digest in plan.saves:
            self._shelf.save(digest, self._kv[saved])
        for source, target in plan.copies:
            self._kv[target] = list(self._kv[source])
        unread = self._load(plan)
        # As on the real one: everybody's keys are written before anybody attends, guesses too.
        for part in plan.slices:
            rows = (*part.tokens[part.start : part.stop], *part.drafts)
            for position, token_id in enumerate(rows, part.start):
                page = self._kv[part.pages[position // PAGE_TOKENS]]
                page[position % PAGE_TOKENS] = token_id
        return StepResult(plan.number, tuple(self._row(part) for part in plan.slices), unread)

    def close(self) -> None:
        self.is_closed = True

    def _load(self, plan: BatchPlan) -> tuple[int, ...]:
        unread = []
        for page, digest in plan.loads:
            found = self._shelf.load(digest)
            if found is None:
                unread.append(page)
            else:
                self._kv[page] = found
        return tuple(unread)

    def _row(self, part: Slice) -> SliceResult:
        if part.request_id in self.faults:
            return SliceResult(part.request_id, fault="logits are not finite")
        stop = part.stop + len(part.drafts)
        seen = [self._kv[part.pages[p // PAGE_TOKENS]][p % PAGE_TOKENS] for p in range(stop)]
        assert -1 not in seen, f"{part.request_id} attends to what nobody computed"
        first, last = part.prompt_logprobs
        scored = tuple(
            TokenLogprob(part.tokens[p + 1], logprob_of(seen[: p + 1], part.tokens[p + 1]))
            for p in range(first, last)
        )
        if not part.samples:
            return SliceResult(part.request_id, prompt_logprobs=scored)
        chosen = [
            next_token(
                seen[: part.stop + index], part.sampling, are_stops_banned=part.bans_stops(index)
            )
            for index in range(part.num_samples)
        ]
        holding = tuple(chosen[: part.agreeing(chosen)])
        logprobs: tuple[TokenLogprob, ...] = ()
        if part.logprobs.chosen:
            logprobs = tuple(
                TokenLogprob(token_id, logprob_of(seen[: part.stop + index], token_id))
                for index, token_id in enumerate(holding)
            )
        return SliceResult(part.request_id, holding, logprobs, scored)
