"""A request's sampling parameters in the form that a program takes."""

from dataclasses import dataclass

import numpy as np

from roost.core.params import Sampling
from roost.core.plan import Slice
from roost.programs import Ints, RowSampling


@dataclass(frozen=True, slots=True)
class RowTraits:
    """What stays the same from step to step of one request; made at its first."""

    sampling: RowSampling
    wants_logprob: bool
    num_top: int
    picked_ids: Ints | None
    prompt_ids: Ints | None
    stop_ids: Ints | None


def row_traits(part: Slice) -> RowTraits:
    """Traits of the request that `part` is of. Ids are i32 arrays, None where there are none."""
    sampling, wanted = part.sampling, part.logprobs
    history = part.tokens[: part.num_prompt_tokens] if sampling.has_penalties else None
    return RowTraits(
        sampling=row_sampling(sampling),
        wants_logprob=wanted.chosen,
        num_top=wanted.top,
        picked_ids=_ids(wanted.token_ids),
        prompt_ids=None if history is None else np.frombuffer(history, np.int32),
        stop_ids=_ids(sampling.stop_ids),
    )


# A program computes in f32, where dividing by less would overflow; the likeliest token has all the
# probability long before.
_LEAST_TEMPERATURE = 1e-5
# Dividing a logit by it puts the token before all others.
_LEAST_PENALTY = 1e-6
# Above it every token is as likely as any other; a bias of it bans or forces.
_LARGEST = 1e6


def row_sampling(sampling: Sampling) -> RowSampling:
    """Any checked parameters, brought into a range in which f32 arithmetic stays finite."""
    temperature = min(sampling.temperature, _LARGEST)
    biases = np.array([value for _, value in sampling.logit_bias])
    return RowSampling(
        temperature=temperature if temperature >= _LEAST_TEMPERATURE else 0.0,
        top_k=sampling.top_k,
        top_p=sampling.top_p,
        min_p=sampling.min_p,
        repetition_penalty=max(sampling.repetition_penalty, _LEAST_PENALTY),
        frequency_penalty=sampling.frequency_penalty,
        presence_penalty=sampling.presence_penalty,
        seed=sampling.seed,
        bias_ids=np.array([token_id for token_id, _ in sampling.logit_bias], np.int32),
        bias_values=np.clip(biases, -_LARGEST, _LARGEST).astype(np.float32),
    )


def _ids(ids: tuple[int, ...]) -> Ints | None:
    return np.array(ids, np.int32) if ids else None
