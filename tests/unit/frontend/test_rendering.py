"""A chat goes on in a session as the model's own template goes on."""

from pathlib import Path

import pytest

from roost.core.errors import RequestError
from roost.frontend import ChatPrompt
from roost.frontend.rendering import rendered, rendered_behind
from roost.text import ChatTemplate, Tokenizer, chat_template_for
from roost.text.chat import CHATML
from roost.weights import open_model

# Turns as Gemma marks them: BOS first, roles in strict turns, the text of each stripped.
GEMMA = (
    "{{ bos_token }}{% for m in messages %}"
    "{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate') }}{% endif %}"
    "<start_of_turn>{{ 'model' if m['role'] == 'assistant' else m['role'] }}\n"
    "{{ m['content'] | trim }}<end_of_turn>\n{% endfor %}"
    "{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)


def chat(*texts: str, role: str = "user", **more: object) -> ChatPrompt:
    messages = tuple({"role": role, "content": text} for text in texts)
    return ChatPrompt(messages, **more)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def demo(demo_model: Path) -> ChatTemplate:
    template = chat_template_for(Tokenizer.from_gguf(open_model(demo_model).metadata))
    assert template is not None
    return template


def test_it_goes_on_with_the_end_of_turn_and_without_the_systems_words(demo: ChatTemplate) -> None:
    assert rendered_behind(demo, chat("And you?"), 0.0) == (
        "<|im_end|>\n<|im_start|>user\nAnd you?<|im_end|>\n<|im_start|>assistant\n"
    )


@pytest.mark.parametrize("role", ["user", "tool", "system"])
def test_it_goes_on_with_any_role(demo: ChatTemplate, role: str) -> None:
    assert rendered_behind(demo, chat("42", role=role), 0.0) == (
        f"<|im_end|>\n<|im_start|>{role}\n42<|im_end|>\n<|im_start|>assistant\n"
    )


def test_a_strict_template_goes_on_in_its_turn() -> None:
    template = ChatTemplate(GEMMA, {"bos_token": "<bos>"})
    assert rendered_behind(template, chat(" more "), 0.0) == (
        "<end_of_turn>\n<start_of_turn>user\nmore<end_of_turn>\n<start_of_turn>model\n"
    )
    with pytest.raises(RequestError, match="must alternate"):
        rendered_behind(template, chat("one", "two"), 0.0)


def test_turn_by_turn_is_the_same_text_as_at_once(demo: ChatTemplate) -> None:
    first = chat("Hi")
    whole = ChatPrompt(
        (
            {"role": "user", "content": "Hi"},
            {"role": "assistant", "content": "Hello!"},
            {"role": "user", "content": "Bye"},
        )
    )
    for template in (demo, ChatTemplate(CHATML), ChatTemplate(GEMMA, {"bos_token": "<bos>"})):
        parts = rendered(template, first, 0.0) + "Hello!"
        parts += rendered_behind(template, chat("Bye"), 0.0)
        assert parts == rendered(template, whole, 0.0)


def test_a_final_message_is_continued_behind_a_session_too() -> None:
    prompt = ChatPrompt(
        ({"role": "user", "content": "Sing"}, {"role": "assistant", "content": "La"}),
        continue_final_message=True,
    )
    assert rendered_behind(ChatTemplate(CHATML), prompt, 0.0) == (
        "<|im_end|>\n<|im_start|>user\nSing<|im_end|>\n<|im_start|>assistant\nLa"
    )


@pytest.mark.parametrize(
    "source",
    [
        "{% for m in messages %}{{ m['content'] | length }}{% endfor %}",
        "{% for m in messages %}{{ m['content'] }}{{ m['content'] }}{% endfor %}",
        "{{ messages[-1]['content'] }}",
    ],
)
def test_a_template_that_does_not_show_an_answer_as_it_is_cannot_go_on(source: str) -> None:
    with pytest.raises(RequestError, match="cannot continue a session; send text or input_ids"):
        rendered_behind(ChatTemplate(source), chat("Hi"), 0.0)


def test_without_messages_or_template_there_is_nothing_to_render() -> None:
    with pytest.raises(RequestError, match="messages must not be empty"):
        rendered_behind(ChatTemplate(CHATML), ChatPrompt(()), 0.0)
    with pytest.raises(RequestError, match="has no chat template"):
        rendered_behind(None, chat("Hi"), 0.0)
