"""StepOutputs → StepResult."""

from roost.core.events import TokenLogprob
from roost.core.plan import BatchPlan, SliceResult, StepResult
from roost.programs import HeadRow, StepInputs, StepOutputs

_FAULT = "the logits of a row are not finite, or leave no token to choose"


def results(plan: BatchPlan, inputs: StepInputs, outputs: StepOutputs) -> StepResult:
    """One result a slice, in the plan's order; `inputs` was made from `plan`."""
    token_ids: list[int] = outputs.token_ids.tolist()
    faults: list[bool] = outputs.faults.tolist()
    found: list[SliceResult] = []
    at = 0
    for part in plan.slices:
        first, last = part.prompt_logprobs
        num_scored = last - first
        stop = at + num_scored + part.samples
        if True in faults[at:stop]:
            found.append(SliceResult(part.request_id, None, fault=_FAULT))
        elif num_scored == 0 and not part.logprobs.chosen:
            token_id = token_ids[at] if part.samples else None
            found.append(SliceResult(part.request_id, token_id))
        else:
            scored = [_logprob(i, inputs.heads[i], outputs) for i in range(at, at + num_scored)]
            token_id, logprob = None, None
            if part.samples:
                token_id = token_ids[stop - 1]
                if part.logprobs.chosen:
                    logprob = _logprob(stop - 1, inputs.heads[stop - 1], outputs)
            found.append(SliceResult(part.request_id, token_id, logprob, tuple(scored)))
        at = stop
    assert at == len(token_ids), "logits that no slice asked for"
    return StepResult(plan.number, tuple(found))


def _logprob(index: int, head: HeadRow, outputs: StepOutputs) -> TokenLogprob:
    picked: tuple[tuple[int, float], ...] = ()
    if head.picked_ids is not None:
        picked = tuple(zip(head.picked_ids.tolist(), outputs.picked(index), strict=True))
    return TokenLogprob(
        token_id=int(outputs.token_ids[index]),
        logprob=float(outputs.logprobs[index]),
        top=outputs.top(index, head.num_top) if head.num_top else (),
        picked=picked,
    )
