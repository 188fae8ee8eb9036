"""What goes into one run of a program, and what comes out: arrays, and a record a logits row."""

from dataclasses import dataclass, field

import msgspec
import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float32]


def _no_ints() -> Ints:
    return np.empty(0, np.int32)


def _no_floats() -> Floats:
    return np.empty(0, np.float32)


@dataclass(frozen=True, slots=True)
class RowSampling:
    """How a token is chosen: made once a request, shared by its rows.

    temperature 0 is greedy. top_k 0, top_p 1, min_p 0 are off. Penalties 0, 0, 1 are off.
    bias_ids i32 [B] and bias_values f32 [B] are added to logits. seed: u64.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    seed: int = 0
    bias_ids: Ints = field(default_factory=_no_ints)
    bias_values: Floats = field(default_factory=_no_floats)

    @property
    def has_penalties(self) -> bool:
        return (
            self.frequency_penalty != 0.0
            or self.presence_penalty != 0.0
            or self.repetition_penalty != 1.0
        )


class HeadRow(msgspec.Struct, frozen=True):
    """One row whose logits are wanted: a token is sampled, or, with a target, only scored.

    row:       row of the step, in [0, num_rows).
    sampling:  how to choose; None: score `target_id` (a prompt logprob), choose nothing.
    position:  of the chosen token in its sequence; with the seed it keys the draw.
    target_id: the token to score when `sampling` is None.
    wants_logprob: log-probability of the chosen token (a scored target always has one).
    num_top:   that many most likely tokens with logprobs, ≤ 128.
    picked_ids: i32 [P] tokens whose logprobs are wanted.
    prompt_ids, generated_ids: i32, the history; read only when the penalties are on.
    banned_ids: i32, never chosen (end-of-sequence before min_new_tokens).
    allowed:   u32 [ceil(vocab / 32)] bit mask of tokens that may be chosen; None: all.
    """

    row: int
    sampling: RowSampling | None
    position: int = 0
    target_id: int = -1
    wants_logprob: bool = False
    num_top: int = 0
    picked_ids: Ints | None = None
    prompt_ids: Ints | None = None
    generated_ids: Ints | None = None
    banned_ids: Ints | None = None
    allowed: npt.NDArray[np.uint32] | None = None


@dataclass(frozen=True, slots=True)
class StepInputs:
    """One step over T rows (tokens) of S slices.

    token_ids, positions: i32 [T]; the rows of slice s are [slice_offsets[s], slice_offsets[s + 1])
    and their positions consecutive.
    slice_offsets: i32 [S + 1], from 0 to T.
    pages: i32, the page tables one after another; slice s has [page_offsets[s],
    page_offsets[s + 1]), and entry i holds its tokens [16·i, 16·i + 16). page_offsets: i32 [S + 1].
    heads: the rows whose logits are wanted, in the order of the outputs.
    """

    token_ids: Ints
    positions: Ints
    slice_offsets: Ints
    pages: Ints
    page_offsets: Ints
    heads: list[HeadRow]


@dataclass(frozen=True, slots=True)
class StepOutputs:
    """Results in the order of `StepInputs.heads`; L entries.

    token_ids:  i32 [L], the chosen token, or the target of a scored row.
    logprobs:   f32 [L], log-softmax of the raw logits at token_ids; NaN where not asked for.
    top_ids, top_logprobs: [L, K], K the largest num_top; most likely first, ties by id.
    picked_logprobs: f32, one after another; entry i has [picked_offsets[i], picked_offsets[i + 1]).
    faults:     bool [L], true where the row's logits are not finite or nothing may be chosen; the
    row's other results mean nothing then.
    """

    token_ids: Ints
    logprobs: Floats
    top_ids: Ints
    top_logprobs: Floats
    picked_logprobs: Floats
    picked_offsets: Ints
    faults: npt.NDArray[np.bool_]

    def top(self, index: int, num_top: int) -> tuple[tuple[int, float], ...]:
        """The first num_top pairs (id, logprob) of entry `index`."""
        ids = self.top_ids[index, :num_top].tolist()
        return tuple(zip(ids, self.top_logprobs[index, :num_top].tolist(), strict=True))

    def picked(self, index: int) -> list[float]:
        """Logprobs of entry `index`'s picked_ids."""
        start, stop = self.picked_offsets[index : index + 2].tolist()
        values: list[float] = self.picked_logprobs[start:stop].tolist()
        return values
