from pathlib import Path

import pytest

from roost.core.errors import ModelError, RequestError
from roost.text import (
    ChatTemplate,
    Tokenizer,
    TokenType,
    VocabKind,
    VocabSpec,
    chat_template_for,
)
from roost.text.chat import CHATML

CHAT: list[dict[str, object]] = [{"role": "user", "content": "Hi"}]
DAY_S = 1_700_000_000.0  # 14 November 2023


def render(source: str, messages: list[dict[str, object]] | None = None, **options: object) -> str:
    template = ChatTemplate(source, {"bos_token": "<s>"})
    return template.render(messages or list(CHAT), now_s=DAY_S, **options)  # type: ignore[arg-type]


def test_chatml() -> None:
    system: dict[str, object] = {"role": "system", "content": "Be brief."}
    assert render(CHATML, [system, *CHAT]) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n"
        "<|im_start|>user\nHi<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    assert render(CHATML, add_generation_prompt=False) == "<|im_start|>user\nHi<|im_end|>\n"


def test_the_demo_models_own_template(demo_tokenizer: Tokenizer) -> None:
    template = chat_template_for(demo_tokenizer)
    assert template is not None
    text = template.render(CHAT, now_s=DAY_S)
    assert text == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face"
        "<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )
    assert demo_tokenizer.encode(text)[:2] == [1, demo_tokenizer.id_of("system")]


def tokenizer(*pieces: str) -> Tokenizer:
    return Tokenizer(
        VocabSpec(kind=VocabKind.BYTE_LEVEL, pieces=pieces, types=[TokenType.CONTROL] * len(pieces))
    )


def test_chatml_stands_in_only_where_its_tokens_exist() -> None:
    chatml = chat_template_for(tokenizer("<|im_start|>", "<|im_end|>"))
    assert chatml is not None
    assert chatml.render(CHAT, now_s=DAY_S).startswith("<|im_start|>user\nHi")
    assert chat_template_for(tokenizer("<s>")) is None


def test_the_template_sees_specials_tools_and_variables() -> None:
    source = "{{ bos_token }}{{ tools | length }}{{ enable_thinking }}"
    tools = [{"type": "function"}]
    assert render(source, tools=tools, variables={"enable_thinking": False}) == "<s>1False"
    assert render("{{ tools is none }}") == "True"


def test_variables_cannot_take_roosts_names() -> None:
    with pytest.raises(RequestError, match="chat_template_kwargs cannot set messages"):
        render("{{ x }}", variables={"messages": []})


def test_the_tool_template_is_for_requests_with_tools() -> None:
    template = ChatTemplate({"default": "plain", "tool_use": "tools"})
    assert template.render(CHAT, now_s=DAY_S) == "plain"
    assert template.render(CHAT, now_s=DAY_S, tools=[{"type": "function"}]) == "tools"


def test_blocks_leave_no_blank_lines() -> None:
    assert render("{% if true %}\n    {% set x = 1 %}\na\n{% endif %}\nb") == "a\nb"


def test_generation_tags_are_transparent() -> None:
    source = "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}"
    assert render(source) == "Hi"


def test_loops_can_be_left() -> None:
    assert (
        render("{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}")
        == "01"
    )


def test_json_is_written_as_models_read_it() -> None:
    value = {"b": "<é & 'x'>", "a": [1, 2]}
    assert render("{{ v | tojson }}", variables={"v": value}) == (
        '{"b": "<é & \'x\'>", "a": [1, 2]}'
    )
    assert render("{{ v | tojson(indent=1) }}", variables={"v": [1]}) == "[\n 1\n]"


def test_the_date_is_the_callers() -> None:
    assert render("{{ strftime_now('%d %b %Y') }}") == "14 Nov 2023"


def test_text_parts_are_joined_for_templates_that_print_content() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    messages: list[dict[str, object]] = [{"role": "user", "content": parts}]
    assert render("{{ messages[0].content }}", messages) == "a b"
    looping = (
        "{% for m in messages %}{% for part in m['content'] %}"
        "[{{ part.text }}]{% endfor %}{% endfor %}"
    )
    assert render(looping, messages) == "[a][b]"


def test_a_part_that_is_not_text_is_refused() -> None:
    messages: list[dict[str, object]] = [
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}
    ]
    with pytest.raises(RequestError, match="a part of type 'image_url'"):
        render(CHATML, messages)


def test_null_content_is_empty() -> None:
    assert render("[{{ messages[0].content }}]", [{"role": "assistant", "content": None}]) == "[]"


def test_arguments_of_tool_calls_become_objects() -> None:
    source = "{{ messages[0].tool_calls[0].function.arguments | tojson }}"

    def shown(arguments: str) -> str:
        call = {"type": "function", "function": {"name": "f", "arguments": arguments}}
        return render(source, [{"role": "assistant", "content": None, "tool_calls": [call]}])

    assert shown('{"x":1}') == '{"x": 1}'
    assert shown("{broken") == '"{broken"'


def test_a_final_message_is_continued_where_it_ends() -> None:
    messages: list[dict[str, object]] = [*CHAT, {"role": "assistant", "content": "Sure, "}]
    assert render(CHATML, messages, continue_final_message=True).endswith("assistant\nSure, ")
    strips = CHATML.replace("message['content']", "message['content'] | trim")
    assert render(strips, messages, continue_final_message=True).endswith("assistant\nSure,")
    twice: list[dict[str, object]] = [*CHAT, {"role": "assistant", "content": "Hi"}]
    assert render(CHATML, twice, continue_final_message=True).endswith("assistant\nHi")


def test_what_cannot_be_continued_is_refused() -> None:
    with pytest.raises(RequestError, match="does not show the final message"):
        render("nothing", continue_final_message=True)
    with pytest.raises(RequestError, match="no text to continue"):
        render(
            "{{ messages[0].content[0] }}{% for c in messages[0].content %}{% endfor %}",
            [{"role": "assistant", "content": []}],
            continue_final_message=True,
        )


def test_a_template_refuses_in_its_own_words() -> None:
    with pytest.raises(RequestError) as info:
        render("{{ raise_exception('Roles must alternate!') }}")
    assert str(info.value) == "Roles must alternate!"
    assert info.value.http_status == 400


@pytest.mark.parametrize(
    ("source", "what"),
    [
        ("{{ messages[0].content + none }}", "TypeError"),
        ("{{ missing.attribute }}", "UndefinedError"),
        ("{{ ''.__class__.__mro__ }}", "SecurityError"),
        ("{{ messages.append(1) }}", "SecurityError"),
        ("{{ 1 // 0 }}", "ZeroDivisionError"),
        ("{{ range(10000000) }}", "OverflowError"),
    ],
)
def test_a_template_that_fails_is_the_requests_failure(source: str, what: str) -> None:
    with pytest.raises(RequestError, match=f"failed on these messages: {what}"):
        render(source)


def test_rendering_is_bounded() -> None:
    source = "{% for i in range(99999) %}{% for j in range(99999) %}{{ s }}{% endfor %}{% endfor %}"
    with pytest.raises(RequestError, match="longer than 33554432 characters"):
        render(source, variables={"s": "x" * 10_000})


def test_no_messages_is_no_chat() -> None:
    with pytest.raises(RequestError, match="must not be empty"):
        ChatTemplate(CHATML).render([], now_s=DAY_S)


def test_a_template_that_is_no_template_is_the_models_fault() -> None:
    with pytest.raises(ModelError, match=r"chat template 'default', line 2: .*"):
        ChatTemplate("a\n{% if %}")


def test_jinja_is_loaded_by_chat_alone() -> None:
    source = (Path(__file__).parents[3] / "src" / "roost" / "text").glob("*.py")
    assert [path.name for path in source if "jinja2" in path.read_text("utf-8")] == ["chat.py"]
