"""A chat prompt as text, by the model's template: whole, or what goes on from a conversation."""

from dataclasses import replace
from typing import Final

from roost.core.errors import RequestError
from roost.frontend.ask import ChatPrompt
from roost.text import ChatTemplate

# Stands for all that was said so far. No template strips, splits or changes it.
_SO_FAR: Final = "\ue000roost-said-so-far\ue000"
_CONVERSATION: Final = (
    {"role": "user", "content": "a"},
    {"role": "assistant", "content": _SO_FAR},
)


def rendered(template: ChatTemplate | None, chat: ChatPrompt, now_s: float) -> str:
    """The text of the messages. now_s: Unix time. Raises RequestError as the template does."""
    if template is None:
        raise RequestError(
            "The model has no chat template; the setting chat_template can give it one.",
            param="messages",
        )
    return template.render(
        chat.messages,
        now_s=now_s,
        tools=chat.tools,
        add_generation_prompt=chat.add_generation_prompt,
        continue_final_message=chat.continue_final_message,
        variables=chat.template_kwargs,
    )


def rendered_behind(template: ChatTemplate | None, chat: ChatPrompt, now_s: float) -> str:
    """The text that follows an answer of the model when the conversation goes on with `chat`.

    It begins with the template's end of turn. Raises RequestError where the template shows an
    answer otherwise than as it is, so that nothing can be put behind it.
    """
    if not chat.messages:
        raise RequestError("messages must not be empty.", param="messages")
    whole = rendered(template, replace(chat, messages=(*_CONVERSATION, *chat.messages)), now_s)
    before, *behind = whole.split(_SO_FAR)
    del before
    if len(behind) != 1:
        raise RequestError(
            "This model's chat template cannot continue a session; send text or input_ids.",
            param="messages",
        )
    return behind[0]
