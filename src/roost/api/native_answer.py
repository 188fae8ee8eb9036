"""What `/generate` gives: `text`, `output_ids` and `meta_info`, whole or in part."""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from roost.api.endings import native_finish, problem_of_ending
from roost.api.gather import Answer, usage_of
from roost.api.logprobs import NativeLogprobs, TokenBytes
from roost.api.native_body import GenerateCall
from roost.api.problems import Dialect
from roost.core.events import TokenLogprob
from roost.core.request import LogprobsWanted
from roost.frontend import Piece


class NativeAnswer(msgspec.Struct, frozen=True, omit_defaults=True):
    """One answer, or one frame of it. `index` only where there are several."""

    text: str
    output_ids: Sequence[int]
    meta_info: "MetaInfo | dict[str, object]"
    index: int | None = None
    prompt_token_ids: Sequence[int] | None = None


class MetaInfo(msgspec.Struct, frozen=True):
    """What is said of an answer beside it, as far as it is known. Times in seconds."""

    id: str
    finish_reason: dict[str, object] | None
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    reasoning_tokens: int
    weight_version: str
    num_retractions: int
    seed: int
    e2e_latency: float
    queue_time: float
    first_token_latency: float | None
    decode_throughput: float


@dataclass(frozen=True, slots=True)
class NativeShape:
    """Makes the answers of one call."""

    call: GenerateCall
    token_bytes: TokenBytes
    weight_version: str

    def whole(self, answer: Answer, now_s: float) -> NativeAnswer:
        """All that there is of an answer so far."""
        return self._shape(answer, answer.text, answer.token_ids, answer.logprobs, now_s)

    def part(self, answer: Answer, piece: Piece, now_s: float) -> NativeAnswer:
        """What a frame says of an answer that has `piece` already: all so far, or what it adds."""
        if self.call.is_incremental:
            return self._shape(answer, piece.text, piece.token_ids, piece.logprobs, now_s)
        return self.whole(answer, now_s)

    def failed(self, answer: Answer, piece: Piece, now_s: float) -> dict[str, object]:
        """The frame of an answer that ended without being one: an error, and what there was."""
        assert piece.ended is not None, "a part of an answer is no failure"
        problem = problem_of_ending(piece.ended, Dialect.NATIVE).fields(Dialect.NATIVE)
        error: dict[str, object] = msgspec.to_builtins(problem)
        part: dict[str, object] = msgspec.to_builtins(self.part(answer, piece, now_s))
        return {**error, **part}

    def _shape(
        self,
        answer: Answer,
        text: str,
        token_ids: Sequence[int],
        logprobs: Sequence[TokenLogprob],
        now_s: float,
    ) -> NativeAnswer:
        head = answer.head
        meta: MetaInfo | dict[str, object]
        meta = found = _meta_info(answer, self.weight_version, now_s)
        wanted = self.call.ask.wishes[head.prompt_index].logprobs
        if wanted.chosen:
            shape = NativeLogprobs(self.token_bytes, has_text=self.call.has_logprob_text)
            fields = _logprob_fields(shape, wanted, answer.prompt_logprobs, logprobs)
            meta = {**msgspec.structs.asdict(found), **fields}
        return NativeAnswer(
            text=text,
            output_ids=token_ids,
            meta_info=meta,
            index=head.index if self.call.is_list else None,
            prompt_token_ids=head.prompt_ids if self.call.has_prompt_ids else None,
        )


def _meta_info(answer: Answer, weight_version: str, now_s: float) -> MetaInfo:
    usage = usage_of(answer)
    first_s, last_s = answer.first_token_s, answer.last_token_s
    arrival_s = answer.head.arrival_s
    end_s = now_s if answer.ended is None or last_s is None else last_s
    num_tokens = len(answer.token_ids)
    speed = 0.0
    if first_s is not None and last_s is not None and last_s > first_s:
        speed = (num_tokens - 1) / (last_s - first_s)
    return MetaInfo(
        id=answer.head.rid,
        finish_reason=native_finish(answer.ended),
        prompt_tokens=answer.head.num_prompt_tokens,
        completion_tokens=usage.num_completion_tokens,
        cached_tokens=usage.num_cached_tokens,
        reasoning_tokens=0,
        weight_version=weight_version,
        num_retractions=usage.num_retractions,
        seed=answer.head.seed,
        e2e_latency=end_s - arrival_s,
        queue_time=usage.queue_s,
        first_token_latency=None if first_s is None else first_s - arrival_s,
        decode_throughput=speed,
    )


def _logprob_fields(
    shape: NativeLogprobs,
    wanted: LogprobsWanted,
    prompt: Sequence[TokenLogprob],
    output: Sequence[TokenLogprob],
) -> dict[str, object]:
    fields: dict[str, object] = {
        "input_token_logprobs": shape.chosen(prompt),
        "output_token_logprobs": shape.chosen(output),
    }
    if wanted.top:
        fields["input_top_logprobs"] = shape.top(prompt)
        fields["output_top_logprobs"] = shape.top(output)
    if wanted.token_ids:
        fields["input_token_ids_logprobs"] = shape.picked(prompt)
        fields["output_token_ids_logprobs"] = shape.picked(output)
    return fields
