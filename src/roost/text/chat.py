"""Messages → prompt, by the model's own chat template (Jinja, as Hugging Face runs it)."""

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from jinja2 import TemplateError, TemplateSyntaxError, nodes
from jinja2.exceptions import TemplateRuntimeError
from jinja2.ext import Extension
from jinja2.sandbox import ImmutableSandboxedEnvironment

from roost.core.errors import ModelError, RequestError
from roost.text.messages import with_mark, without_parts
from roost.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from jinja2.parser import Parser

# More text than any context takes: about 8 million tokens. A template that loops without end
# stops here.
MAX_RENDERED_CHARS: Final = 32 << 20

# Names that a template gets from roost; a client's variables cannot replace them.
_RESERVED: Final = frozenset(
    {"messages", "tools", "add_generation_prompt", "raise_exception", "strftime_now"}
)
# What a template does to odd messages without meaning to: add None to a string, …
_FAILURES: Final = (
    TemplateError,
    TypeError,
    ValueError,
    ArithmeticError,
    LookupError,
    AttributeError,
    RecursionError,
    MemoryError,
)
# Stands behind the last message while a template runs, so that its end can be found again. The
# space shows whether the template strips messages.
_MARK: Final = "\ue000roost-end-of-last-message\ue000 "

# The format that OpenAI described for its first chat models, and many models learnt since.
CHATML: Final = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


class ChatTemplate:
    """A compiled template. Rendering changes nothing in it; threads may share it."""

    def __init__(
        self, sources: str | Mapping[str, str], specials: Mapping[str, str] | None = None
    ) -> None:
        """sources: the template, or several by name ("default", "tool_use" for requests with
        tools). specials: `bos_token`, `eos_token` … as the template sees them.

        Raises ModelError for a template that is not valid Jinja.
        """
        named = {"default": sources} if isinstance(sources, str) else dict(sources)
        assert named, "no template at all is chat_template_for's business"
        environment = _environment()
        self._templates = {}
        for name, source in named.items():
            try:
                tree = environment.parse(source)
                self._templates[name] = environment.from_string(tree)
            except TemplateSyntaxError as exc:
                raise ModelError(f"chat template {name!r}, line {exc.lineno}: {exc}") from exc
            if name == "default" or len(named) == 1:
                self._takes_parts = _loops_over_content(tree)
        self._specials = dict(specials or {})

    def render(
        self,
        messages: Sequence[Mapping[str, object]],
        *,
        now_s: float,
        tools: Sequence[Mapping[str, object]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        variables: Mapping[str, object] | None = None,
    ) -> str:
        """The prompt's text, special tokens spelled out.

        messages, tools: as in the OpenAI API. now_s: what `strftime_now` shows (Unix time, UTC).
        continue_final_message: the prompt stops inside the last message, and nothing is added
        after it, whatever `add_generation_prompt` says. variables: more names for the template
        (`chat_template_kwargs`).

        Raises RequestError: the template refused (its own words), failed on these messages, or
        does not show the message that is to be continued.
        """
        if not messages:
            raise RequestError("messages must not be empty.", param="messages")
        taken = _RESERVED.intersection(variables or {})
        if taken:
            raise RequestError(
                f"chat_template_kwargs cannot set {', '.join(sorted(taken))}.",
                param="chat_template_kwargs",
            )
        shown = without_parts(messages, keep_text_parts=self._takes_parts)
        if continue_final_message:
            shown = [*shown[:-1], with_mark(shown[-1], _MARK)]
        text = self._run(
            {
                **self._specials,
                **(variables or {}),
                "messages": shown,
                "tools": list(tools) if tools else None,
                "add_generation_prompt": add_generation_prompt and not continue_final_message,
                "raise_exception": _raise_exception,
                "strftime_now": datetime.fromtimestamp(now_s, UTC).strftime,
            },
        )
        return _up_to_mark(text) if continue_final_message else text

    def _run(self, names: dict[str, object]) -> str:
        which = "tool_use" if names["tools"] and "tool_use" in self._templates else "default"
        template = self._templates.get(which) or next(iter(self._templates.values()))
        parts, num_chars = [], 0
        try:
            for part in template.generate(names):
                num_chars += len(part)
                if num_chars > MAX_RENDERED_CHARS:
                    raise RequestError(
                        f"The chat template's text is longer than {MAX_RENDERED_CHARS} characters.",
                        param="messages",
                    )
                parts.append(part)
        except _Refusal as exc:
            raise RequestError(str(exc), param="messages") from exc
        except _FAILURES as exc:
            raise RequestError(
                f"The chat template failed on these messages: {type(exc).__name__}: {exc}",
                param="messages",
            ) from exc
        return "".join(parts)


def chat_template_for(tokenizer: Tokenizer) -> ChatTemplate | None:
    """The model's template; ChatML where it brings none, but has ChatML's tokens; else None.

    None: the model has no chat format, and a chat request to it is to be refused. Raises
    ModelError for a template that is not valid Jinja.
    """
    specials = tokenizer.special_pieces()
    if tokenizer.chat_templates:
        return ChatTemplate(tokenizer.chat_templates, specials)
    if tokenizer.id_of("<|im_start|>") is not None and tokenizer.id_of("<|im_end|>") is not None:
        return ChatTemplate(CHATML, specials)
    return None


class _Refusal(TemplateRuntimeError):
    """The template called `raise_exception`."""


def _raise_exception(message: object) -> str:
    raise _Refusal(str(message))


class _GenerationTag(Extension):
    """`{% generation %} … {% endgeneration %}` marks what training learns from: shown as is."""

    tags = frozenset({"generation"})  # type: ignore[assignment]  # a set that nobody writes

    def parse(self, parser: "Parser") -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _environment() -> ImmutableSandboxedEnvironment:
    # What transformers sets (utils/chat_template_utils.py): templates are written for that.
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        autoescape=False,  # a prompt is not HTML
        extensions=["jinja2.ext.loopcontrols", _GenerationTag],
    )
    environment.filters["tojson"] = _to_json
    return environment


def _to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Jinja's own filter escapes for HTML, which no model was trained on."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _loops_over_content(tree: nodes.Template) -> bool:
    """Whether the template itself walks over a message's parts."""
    for loop in tree.find_all(nodes.For):
        iterated = loop.iter
        while isinstance(iterated, nodes.Filter) and isinstance(iterated.node, nodes.Expr):
            iterated = iterated.node
        if isinstance(iterated, nodes.Getattr) and iterated.attr == "content":
            return True
        if (
            isinstance(iterated, nodes.Getitem)
            and isinstance(iterated.arg, nodes.Const)
            and iterated.arg.value == "content"
        ):
            return True
        if isinstance(iterated, nodes.Name) and iterated.name == "content":
            return True
    return False


def _up_to_mark(text: str) -> str:
    at = text.rfind(_MARK.rstrip())
    if at < 0:
        raise RequestError(
            "continue_final_message: the chat template does not show the final message.",
            param="continue_final_message",
        )
    # Without its space the mark was stripped, as the message's own end would have been.
    kept = text[:at]
    return kept if text.startswith(_MARK, at) else kept.rstrip()
