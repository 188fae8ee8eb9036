"""Sampling parameters: as a client asks (`SamplingParams`), and checked (`Sampling`).

The two are different types, so that nobody behind the intake has to ask whether a value is sane.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from roost.core.errors import RequestError

MAX_STOPS = 32
MAX_STOP_BYTES = 256
MAX_CHOICES = 128
MAX_TOP_LOGPROBS = 128
_U64 = 1 << 64


class SamplingParams(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """What a client may ask of sampling; the native API's names.

    Parameters
    ----------
    max_new_tokens:
        Most tokens to generate, ≥ 0 (0: prefill only). None: to the end of the context.
    min_new_tokens:
        No end-of-sequence token and no stop counts before this many tokens.
    temperature, top_p, top_k, min_p:
        0 is greedy · (0, 1] · −1 (off) or ≥ 1 · [0, 1]. Applied in the order penalties,
        logit bias, temperature, top-k, top-p, min-p.
    frequency_penalty, presence_penalty, repetition_penalty:
        [−2, 2] over generated tokens · likewise · (0, 2] over prompt and generated tokens.
    logit_bias:
        token id → value added to its logit; ±inf is not accepted, −100 bans in practice.
    seed:
        u64. With the position it keys every draw, so the same seed gives the same tokens in any
        batch. None: the intake draws one, and the answer reports it.
    stop, stop_token_ids, stop_regex:
        End the answer; the matched text is cut off unless `no_stop_trim`.
    n:
        Number of answers, 1 … 128. Answer i draws with seed + i.
    """

    max_new_tokens: int | None = 128
    min_new_tokens: int = 0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    min_p: float = 0.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: dict[str, float] | None = None
    seed: int | None = None
    sampling_seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    stop_regex: str | list[str] | None = None
    n: int = 1
    ignore_eos: bool = False
    no_stop_trim: bool = False
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True


class Sampling(msgspec.Struct, frozen=True, array_like=True):
    """Checked parameters of one answer (n is already split). What the engine sees.

    `top_k` 0 is off. `stop_ids` holds the model's end-of-generation ids too, unless `ignore_eos`.
    `stops` are UTF-8 bytes.
    """

    max_new_tokens: int
    min_new_tokens: int
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    frequency_penalty: float
    presence_penalty: float
    repetition_penalty: float
    logit_bias: tuple[tuple[int, float], ...]
    seed: int
    stop_ids: tuple[int, ...]
    stops: tuple[bytes, ...]
    stop_regexes: tuple[str, ...]
    no_stop_trim: bool
    skip_special_tokens: bool

    @property
    def has_penalties(self) -> bool:
        return (
            self.frequency_penalty != 0.0
            or self.presence_penalty != 0.0
            or self.repetition_penalty != 1.0
        )


@dataclass(frozen=True, slots=True)
class Limits:
    """What bounds a request: facts of the model and of the server."""

    vocab_size: int
    max_context_tokens: int
    eos_ids: tuple[int, ...]


def check_sampling(
    params: SamplingParams, limits: Limits, *, num_prompt_tokens: int, fallback_seed: int
) -> Sampling:
    """Turn wishes into facts for the first answer (answer i: `with_answer_index`).

    Raises RequestError naming the field, the value and the limit.
    """
    room = limits.max_context_tokens - num_prompt_tokens
    max_new = room if params.max_new_tokens is None else params.max_new_tokens
    _within("max_new_tokens", max_new, 0, None)
    _within("min_new_tokens", params.min_new_tokens, 0, None)
    if params.min_new_tokens > max_new:
        raise RequestError(
            f"min_new_tokens must be in [0, max_new_tokens ({max_new})], got "
            f"{params.min_new_tokens}.",
            param="min_new_tokens",
        )
    _within("temperature", params.temperature, 0.0, None)
    _within("top_p", params.top_p, 0.0, 1.0, open_low=True)
    if params.top_k != -1 and params.top_k < 1:
        raise RequestError(f"top_k must be -1 or at least 1, got {params.top_k}.", param="top_k")
    _within("min_p", params.min_p, 0.0, 1.0)
    _within("frequency_penalty", params.frequency_penalty, -2.0, 2.0)
    _within("presence_penalty", params.presence_penalty, -2.0, 2.0)
    _within("repetition_penalty", params.repetition_penalty, 0.0, 2.0, open_low=True)
    _within("n", params.n, 1, MAX_CHOICES)
    stop_ids = _checked_ids("stop_token_ids", params.stop_token_ids or (), limits.vocab_size)
    if not params.ignore_eos:
        stop_ids = tuple(dict.fromkeys((*stop_ids, *limits.eos_ids)))
    return Sampling(
        max_new_tokens=max_new,
        min_new_tokens=params.min_new_tokens,
        temperature=params.temperature,
        top_k=0 if params.top_k == -1 else min(params.top_k, limits.vocab_size),
        top_p=params.top_p,
        min_p=params.min_p,
        frequency_penalty=params.frequency_penalty,
        presence_penalty=params.presence_penalty,
        repetition_penalty=params.repetition_penalty,
        logit_bias=_checked_bias(params.logit_bias or {}, limits.vocab_size),
        seed=_checked_seed(params, fallback_seed),
        stop_ids=stop_ids,
        stops=tuple(s.encode() for s in _checked_stops("stop", params.stop)),
        stop_regexes=_checked_stops("stop_regex", params.stop_regex),
        no_stop_trim=params.no_stop_trim,
        skip_special_tokens=params.skip_special_tokens,
    )


def with_answer_index(sampling: Sampling, index: int) -> Sampling:
    """The parameters of answer `index` of n: the same, with a seed of its own."""
    if index == 0:
        return sampling
    return msgspec.structs.replace(sampling, seed=(sampling.seed + index) % _U64)


def _within(
    name: str, value: float, low: float, high: float | None, *, open_low: bool = False
) -> None:
    left = "(" if open_low else "["
    span = f"{left}{low:g}, {'∞)' if high is None else f'{high:g}]'}"
    # Compared so that NaN fails too, and an int of any size is no float that overflows.
    bad = not low <= value < math.inf or (open_low and value == low)
    if bad or (high is not None and value > high):
        raise RequestError(f"{name} must be in {span}, got {value}.", param=name)


def _checked_ids(name: str, ids: Sequence[int], vocab_size: int) -> tuple[int, ...]:
    if len(ids) > MAX_STOPS:
        raise RequestError(f"{name} takes at most {MAX_STOPS} ids, got {len(ids)}.", param=name)
    for token_id in ids:
        if not 0 <= token_id < vocab_size:
            raise RequestError(
                f"{name} must hold ids in [0, {vocab_size}), got {token_id}.", param=name
            )
    return tuple(ids)


def _checked_stops(name: str, stops: str | list[str] | None) -> tuple[str, ...]:
    given = (stops,) if isinstance(stops, str) else tuple(stops or ())
    if len(given) > MAX_STOPS:
        raise RequestError(
            f"{name} takes at most {MAX_STOPS} entries, got {len(given)}.", param=name
        )
    for stop in given:
        if not 1 <= len(stop.encode("utf-8", "surrogatepass")) <= MAX_STOP_BYTES:
            raise RequestError(
                f"{name} must hold strings of 1 to {MAX_STOP_BYTES} bytes.", param=name
            )
        if any(0xD800 <= ord(c) <= 0xDFFF for c in stop):
            raise RequestError(f"{name} must be valid Unicode.", param=name)
    return given


def _checked_bias(bias: Mapping[str, float], vocab_size: int) -> tuple[tuple[int, float], ...]:
    pairs = []
    for key, value in bias.items():
        is_id = key.isascii() and key.isdigit() and len(key) <= len(str(vocab_size))
        if not is_id or int(key) >= vocab_size:
            raise RequestError(
                f"logit_bias keys must be token ids in [0, {vocab_size}), got {key[:40]!r}.",
                param="logit_bias",
            )
        if not math.isfinite(value):
            raise RequestError(
                f"logit_bias values must be finite, got {value}.", param="logit_bias"
            )
        pairs.append((int(key), float(value)))
    return tuple(pairs)


def _checked_seed(params: SamplingParams, fallback_seed: int) -> int:
    if params.seed is not None and params.sampling_seed not in (None, params.seed):
        raise RequestError("seed and sampling_seed differ; give one.", param="seed")
    seed = params.sampling_seed if params.seed is None else params.seed
    if seed is None:
        return fallback_seed % _U64
    if not -(1 << 63) <= seed < _U64:
        raise RequestError(f"seed must fit 64 bits, got {seed}.", param="seed")
    return seed % _U64
