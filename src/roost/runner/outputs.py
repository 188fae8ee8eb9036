"""StepOutputs → StepResult."""

from roost.core.events import TokenLogprob
from roost.core.plan import BatchPlan, Slice, SliceResult, StepResult
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
        sampled = at + last - first
        stop = sampled + part.num_samples
        end = stop
        if part.drafts:
            end = sampled + _num_good(part, token_ids[sampled:stop], faults[sampled:stop])
        if True in faults[at:end]:
            found.append(SliceResult(part.request_id, fault=_FAULT))
        elif sampled == at and not part.logprobs.chosen:
            found.append(SliceResult(part.request_id, tuple(token_ids[at:end])))
        else:
            scored = [_logprob(i, inputs.heads[i], outputs) for i in range(at, sampled)]
            chosen: list[TokenLogprob] = []
            if part.logprobs.chosen:
                chosen = [_logprob(i, inputs.heads[i], outputs) for i in range(sampled, end)]
            found.append(
                SliceResult(
                    part.request_id, tuple(token_ids[sampled:end]), tuple(chosen), tuple(scored)
                )
            )
        at = stop
    assert at == len(token_ids), "logits that no slice asked for"
    return StepResult(plan.number, tuple(found))


def _num_good(part: Slice, token_ids: list[int], faults: list[bool]) -> int:
    """How many of the sampled tokens hold. At least the first, even if its row is faulty; a later
    row that is faulty is left to the step that begins with it.
    """
    num_good = part.agreeing(token_ids)
    if True in faults[1:num_good]:
        return faults.index(True, 1)
    return num_good


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
