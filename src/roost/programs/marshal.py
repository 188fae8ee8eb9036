"""A step's inputs as the flat arrays of the native call, and its results back."""

import struct

import numpy as np
import numpy.typing as npt

from roost import _native
from roost.programs.step import Floats, HeadRow, Ints, RowSampling, StepInputs, StepOutputs

# `HeadRecord` of native/src/sampler.h: seed, position; row, target, flags, num_top; temperature,
# top_k, top_p, min_p; the penalties; begin and count of bias, prompt, generated, banned and picked
# ids in the pool of ints; begin of the bias values in the pool of floats, and of the mask in the
# pool of masks, or −1.
_RECORD = struct.Struct("=Qq4i f i 2f 3f 10i 2i 4x")
_IS_SAMPLED = 1
_WANTS_LOGPROB = 2
_NOTHING = RowSampling()
_NO_INTS: Ints = np.empty(0, np.int32)
_NO_FLOATS: Floats = np.empty(0, np.float32)
_NO_MASKS: npt.NDArray[np.uint32] = np.empty(0, np.uint32)


class _Pools:
    """Ragged arrays of all rows, one after another."""

    def __init__(self) -> None:
        self._ints: list[Ints] = []
        self._floats: list[Floats] = []
        self._masks: list[npt.NDArray[np.uint32]] = []
        self._num_ints = 0
        self._num_floats = 0
        self._num_masks = 0

    def put(self, ids: Ints | None) -> tuple[int, int]:
        """Begin and count of `ids`."""
        if ids is None or len(ids) == 0:
            return 0, 0
        begin = self._num_ints
        self._ints.append(ids)
        self._num_ints += len(ids)
        return begin, len(ids)

    def put_values(self, values: Floats) -> int:
        """Begin of `values`."""
        begin = self._num_floats
        if len(values):
            self._floats.append(values)
            self._num_floats += len(values)
        return begin

    def put_mask(self, mask: npt.NDArray[np.uint32] | None) -> int:
        if mask is None:
            return -1
        begin = self._num_masks
        self._masks.append(mask)
        self._num_masks += len(mask)
        return begin

    def arrays(self) -> tuple[Ints, Floats, npt.NDArray[np.uint32]]:
        ints = np.concatenate(self._ints, dtype=np.int32) if self._ints else _NO_INTS
        floats = np.concatenate(self._floats, dtype=np.float32) if self._floats else _NO_FLOATS
        masks = np.concatenate(self._masks, dtype=np.uint32) if self._masks else _NO_MASKS
        return ints, floats, masks


def run(native: _native.Program, inputs: StepInputs, vocab_size: int) -> StepOutputs:
    """Run one step. Raises ValueError when something is out of range."""
    num_heads = len(inputs.heads)
    num_top = max((head.num_top for head in inputs.heads), default=0)
    records = bytearray(_RECORD.size * num_heads)
    pools = _Pools()
    picked_offsets = np.zeros(num_heads + 1, np.int32)
    num_mask_words = (vocab_size + 31) // 32
    for index, head in enumerate(inputs.heads):
        if head.allowed is not None and len(head.allowed) != num_mask_words:
            raise ValueError(f"allowed has {len(head.allowed)} words, not {num_mask_words}")
        num_picked = _write(records, index * _RECORD.size, head, pools)
        picked_offsets[index + 1] = picked_offsets[index] + num_picked
    outputs = StepOutputs(
        token_ids=np.empty(num_heads, np.int32),
        logprobs=np.empty(num_heads, np.float32),
        top_ids=np.empty((num_heads, num_top), np.int32),
        top_logprobs=np.empty((num_heads, num_top), np.float32),
        picked_logprobs=np.empty(int(picked_offsets[-1]), np.float32),
        picked_offsets=picked_offsets,
        faults=np.zeros(num_heads, np.bool_),
    )
    native.run(
        (inputs.token_ids, inputs.positions, inputs.slice_offsets),
        (inputs.pages, inputs.page_offsets),
        np.frombuffer(records, np.uint8),
        pools.arrays(),
        (outputs.token_ids, outputs.logprobs, outputs.top_ids, outputs.top_logprobs),
        (outputs.picked_logprobs, outputs.picked_offsets, outputs.faults.view(np.uint8)),
    )
    return outputs


def _write(records: bytearray, at: int, head: HeadRow, pools: _Pools) -> int:
    """Write one record; the number of picked ids."""
    sampling = head.sampling or _NOTHING
    flags = _IS_SAMPLED if head.sampling is not None else 0
    if head.wants_logprob or head.sampling is None:
        flags |= _WANTS_LOGPROB
    has_penalties = sampling.has_penalties
    picked_begin, num_picked = pools.put(head.picked_ids)
    _RECORD.pack_into(
        records,
        at,
        sampling.seed,
        head.position,
        head.row,
        head.target_id,
        flags,
        head.num_top,
        sampling.temperature,
        sampling.top_k,
        sampling.top_p,
        sampling.min_p,
        sampling.repetition_penalty,
        sampling.frequency_penalty,
        sampling.presence_penalty,
        *pools.put(sampling.bias_ids),
        *pools.put(head.prompt_ids if has_penalties else None),
        *pools.put(head.generated_ids if has_penalties else None),
        *pools.put(head.banned_ids),
        picked_begin,
        num_picked,
        pools.put_values(sampling.bias_values),
        pools.put_mask(head.allowed),
    )
    return num_picked
