"""BatchPlan → StepInputs. The steady case, many rows of one token each, is the one that is fast."""

from array import array
from dataclasses import dataclass

import numpy as np

from roost.core.params import Sampling
from roost.core.plan import BatchPlan, Slice
from roost.core.request import RequestId
from roost.programs import HeadRow, Ints, StepInputs
from roost.runner.sampler import RowTraits, row_traits


@dataclass(slots=True)
class _Known:
    """What was made of a request at an earlier step. Valid while `sampling` is the same object;
    the page table while `pages` is.
    """

    sampling: Sampling
    traits: RowTraits
    pages: tuple[int, ...]
    table: Ints


class InputMaker:
    """Turns plans into arrays, and remembers what stays the same between one step and the next."""

    def __init__(self) -> None:
        self._known: dict[RequestId, _Known] = {}

    def make(self, plan: BatchPlan) -> StepInputs:
        """Arrays of the plan. They are copies: the sequences may grow while a program runs."""
        known: dict[RequestId, _Known] = {}
        token_ids: array[int] = array("i")
        offsets, page_offsets = [0], [0]
        tables: list[Ints] = []
        heads: list[HeadRow] = []
        for part in plan.slices:
            entry = self._entry(part)
            known[part.request_id] = entry
            first_row = len(token_ids)
            if part.stop - part.start == 1:
                token_ids.append(part.tokens[part.start])
            else:
                token_ids.extend(part.tokens[part.start : part.stop])
            if part.drafts:
                token_ids.extend(part.drafts)
            offsets.append(len(token_ids))
            tables.append(entry.table)
            page_offsets.append(page_offsets[-1] + len(entry.table))
            _add_heads(heads, part, entry.traits, first_row)
        # Those that had no part in this step are forgotten: they ended, or wait.
        self._known = known
        return StepInputs(
            token_ids=np.frombuffer(token_ids, np.int32),
            positions=_positions(plan, len(token_ids)),
            slice_offsets=np.array(offsets, np.int32),
            pages=np.concatenate(tables),
            page_offsets=np.array(page_offsets, np.int32),
            heads=heads,
        )

    def _entry(self, part: Slice) -> _Known:
        entry = self._known.get(part.request_id)
        if entry is None or entry.sampling is not part.sampling:
            table = np.array(part.pages, np.int32)
            return _Known(part.sampling, row_traits(part), part.pages, table)
        if entry.pages is not part.pages:
            entry.pages = part.pages
            entry.table = np.array(part.pages, np.int32)
        return entry


def _positions(plan: BatchPlan, num_rows: int) -> Ints:
    if num_rows == len(plan.slices):
        return np.array([part.start for part in plan.slices], np.int32)
    return np.concatenate(
        [np.arange(p.start, p.start + p.num_tokens, dtype=np.int32) for p in plan.slices]
    )


def _add_heads(heads: list[HeadRow], part: Slice, traits: RowTraits, first_row: int) -> None:
    """Add the rows whose logits are wanted: scored prompt tokens, then the sampled ones."""
    first, last = part.prompt_logprobs
    for position in range(first, last):
        heads.append(
            HeadRow(
                row=first_row + position - part.start,
                sampling=None,
                position=position + 1,
                target_id=part.tokens[position + 1],
                wants_logprob=True,
                num_top=traits.num_top,
                picked_ids=traits.picked_ids,
            )
        )
    if not part.samples:
        return
    for index in range(part.num_samples):
        position = part.stop + index
        heads.append(
            HeadRow(
                row=first_row + position - 1 - part.start,
                sampling=traits.sampling,
                position=position,
                wants_logprob=traits.wants_logprob,
                num_top=traits.num_top if traits.wants_logprob else 0,
                picked_ids=traits.picked_ids if traits.wants_logprob else None,
                prompt_ids=traits.prompt_ids,
                generated_ids=None if traits.prompt_ids is None else _generated(part, index),
                banned_ids=traits.stop_ids if part.bans_stops(index) else None,
            )
        )


def _generated(part: Slice, num_drafts: int) -> Ints:
    """The answer as it would be with the first `num_drafts` drafts, i32."""
    ids = part.tokens[part.num_prompt_tokens :]
    ids.extend(part.drafts[:num_drafts])
    return np.frombuffer(ids, np.int32)
