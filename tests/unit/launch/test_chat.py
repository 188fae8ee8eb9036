"""A conversation in the terminal."""

import io
import subprocess
import sys
from collections.abc import Generator, Sequence
from pathlib import Path

import pytest
from rich.console import Console
from tests.e2e.serving import Served

from roost.core.errors import RequestError, RoostError
from roost.launch.chat import Conversation
from roost.launch.talkers import ChatOptions, Message, ServerTalker

OPTIONS = ChatOptions(system=None, temperature=0.0, max_tokens=8, seed=None)


class Person:
    """Answers with the number of messages; is told what to do by the last of them."""

    def __init__(self) -> None:
        self.heard: list[list[Message]] = []
        self.num_closed = 0

    def __enter__(self) -> "Person":
        return self

    def __exit__(self, *exc: object) -> None:
        pass

    def name(self) -> str:
        return "a person"

    def answer(self, messages: Sequence[Message]) -> Generator[str, None, None]:
        self.heard.append(list(messages))
        try:
            yield str(len(messages))
            if messages[-1]["content"] == "interrupt":
                raise KeyboardInterrupt
            if messages[-1]["content"] == "fail":
                raise RequestError("no [more]")
            yield "!"
        finally:
            self.num_closed += 1


def conversation(system: str | None = None) -> tuple[Conversation, Person, io.StringIO]:
    person, out = Person(), io.StringIO()
    options = ChatOptions(system, 0.0, None, None)
    return Conversation(person, options, Console(file=out, width=100)), person, out


def test_it_remembers_what_was_said() -> None:
    talk, person, out = conversation(system="be brief")
    assert talk.hear("one")
    assert talk.hear("two")
    assert person.heard[1] == [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "2!"},
        {"role": "user", "content": "two"},
    ]
    assert "4!" in out.getvalue()


def test_reset_forgets_all_but_the_system_message() -> None:
    talk, _, _ = conversation(system="be brief")
    talk.hear("one")
    assert talk.hear("/reset")
    assert talk.messages == [{"role": "system", "content": "be brief"}]


def test_exit_leaves_and_what_is_no_command_is_explained() -> None:
    talk, person, out = conversation()
    assert talk.hear("/what")
    assert "/reset" in out.getvalue()
    assert talk.hear("   ")
    assert person.heard == []
    assert not talk.hear("/exit")
    assert not talk.hear(" /quit ")


def test_an_interrupt_stops_the_answer_and_keeps_its_beginning() -> None:
    talk, person, out = conversation()
    assert talk.hear("interrupt")
    assert "(stopped)" in out.getvalue()
    assert talk.messages[-1] == {"role": "assistant", "content": "1"}
    assert person.num_closed == 1


def test_an_error_is_shown_as_it_is_and_the_talk_goes_on() -> None:
    talk, _, out = conversation()
    assert talk.hear("fail")
    assert "no [more]" in out.getvalue()
    assert talk.hear("on")


def test_a_server_is_talked_to(server: Served) -> None:
    with ServerTalker(server.url + "/v1/", OPTIONS, None) as talker:
        assert talker.name().startswith("demo at ")
        text = "".join(talker.answer([{"role": "user", "content": "Hello"}]))
        assert text
        with pytest.raises(RequestError, match="maximum context length"):
            list(talker.answer([{"role": "user", "content": "word " * 9000}]))


def test_nobody_at_the_url_is_said_plainly() -> None:
    with (
        ServerTalker("http://127.0.0.1:1", OPTIONS, None) as talker,
        pytest.raises(RoostError, match=r"no server at http://127\.0\.0\.1:1"),
    ):
        talker.name()


def test_chat_reads_lines_from_a_pipe_and_leaves_at_their_end(server: Served) -> None:
    command = [sys.executable, "-m", "roost.launch", "chat", "--url", server.url]
    done = subprocess.run(
        [*command, "--max-tokens", "4", "--temperature", "0"],
        input="Hello\n/reset\nHello\n",
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stderr == ""
    assert "A new conversation." in done.stdout
    answers = done.stdout.split("A new conversation.")
    first, second = (a.strip().splitlines() for a in answers)
    assert first[-2:][0] == second[0]


def test_generate_writes_the_answer_and_nothing_else(demo_model: Path) -> None:
    command = [sys.executable, "-m", "roost.launch", "generate", "--model", str(demo_model)]
    limits = ["--max-total-tokens", "512", "--max-tokens", "6", "--temperature", "0"]
    runs = [
        subprocess.run(
            [*command, *limits, prompt],
            input="Once upon a time",
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )
        for prompt in ("Once upon a time", "-")
    ]
    assert runs[0].stdout == runs[1].stdout
    assert runs[0].stdout.strip()
