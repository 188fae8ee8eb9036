"""Token counts as OpenAI's API has them."""

from collections.abc import Iterable

import msgspec

from roost.api.gather import Answer, usage_of


class PromptDetails(msgspec.Struct, frozen=True):
    cached_tokens: int


class CompletionDetails(msgspec.Struct, frozen=True):
    reasoning_tokens: int = 0


class OpenAIUsage(msgspec.Struct, frozen=True):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails
    completion_tokens_details: CompletionDetails = CompletionDetails()


def openai_usage(answers: Iterable[Answer]) -> OpenAIUsage:
    """The counts of a call: each prompt once, however many answers it has."""
    prompts: dict[int, int] = {}
    cached: dict[int, int] = {}
    num_completion = 0
    for answer in answers:
        usage = usage_of(answer)
        index = answer.head.prompt_index
        prompts[index] = answer.head.num_prompt_tokens
        cached[index] = max(cached.get(index, 0), usage.num_cached_tokens)
        num_completion += usage.num_completion_tokens
    num_prompt = sum(prompts.values())
    return OpenAIUsage(
        prompt_tokens=num_prompt,
        completion_tokens=num_completion,
        total_tokens=num_prompt + num_completion,
        prompt_tokens_details=PromptDetails(sum(cached.values())),
    )
