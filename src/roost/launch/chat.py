"""`roost chat`: a conversation in the terminal.

Ctrl-C stops the answer that is being written, Ctrl-D leaves.
"""

import sys
from collections.abc import Sequence
from typing import Final

from rich.console import Console
from rich.text import Text

from roost.core.clock import SystemClock
from roost.core.config import ServeConfig
from roost.core.errors import RoostError
from roost.launch.talkers import ChatOptions, Message, ServerTalker, Talker

_HELP: Final = "/reset starts over · /exit or Ctrl-D leaves · Ctrl-C stops an answer"


def chat(
    config: ServeConfig, options: ChatOptions, url: str | None, api_key: str | None = None
) -> int:
    """Talk until the user leaves. The exit code."""
    is_terminal = sys.stdin.isatty() and sys.stdout.isatty()
    with _talker(config, options, url, api_key) as talker:
        conversation = Conversation(talker, options, Console(highlight=False))
        conversation.greet()
        if is_terminal:
            import readline  # noqa: F401  gives `input` its line editing and history
        while True:
            try:
                line = input("\n> " if is_terminal else "")
            except EOFError:
                return 0
            except KeyboardInterrupt:
                print(f"\n{_HELP}")
                continue
            if not conversation.hear(line):
                return 0


def _talker(
    config: ServeConfig, options: ChatOptions, url: str | None, api_key: str | None
) -> Talker:
    if url is not None:
        return ServerTalker(url, options, api_key)
    from roost.launch.local_talker import LocalTalker

    return LocalTalker(config, options)


class Conversation:
    """What was said so far, and the commands that change it."""

    def __init__(self, talker: Talker, options: ChatOptions, console: Console) -> None:
        self._talker = talker
        self._system: Sequence[Message] = ()
        if options.system is not None:
            self._system = ({"role": "system", "content": options.system},)
        self._console = console
        self._clock = SystemClock()
        self._said: list[Message] = []

    @property
    def messages(self) -> list[Message]:
        return [*self._system, *self._said]

    def greet(self) -> None:
        self._console.print(Text(self._talker.name(), style="bold"))
        self._console.print(Text(_HELP, style="dim"))

    def hear(self, line: str) -> bool:
        """Answer a line, or obey it. False: the user leaves."""
        text = line.strip()
        if text in ("/exit", "/quit"):
            return False
        if text == "/reset":
            self._said.clear()
            self._console.print("[dim]A new conversation.[/dim]")
        elif text.startswith("/"):
            self._console.print(f"[dim]{_HELP}[/dim]")
        elif text:
            self._answer(line)
        return True

    def _answer(self, line: str) -> None:
        self._said.append({"role": "user", "content": line})
        pieces: list[str] = []
        begun_s = self._clock.now_s()
        answer = self._talker.answer(self.messages)
        try:
            for piece in answer:
                pieces.append(piece)
                self._console.out(piece, end="", highlight=False)
        except KeyboardInterrupt:
            self._console.print(" [dim](stopped)[/dim]", end="")
        except RoostError as error:
            self._console.print(Text(f" {error.message}", style="red"), end="")
        finally:
            answer.close()
        seconds = self._clock.now_s() - begun_s
        self._console.print(f"\n[dim]{seconds:.1f} s[/dim]")
        if pieces:
            # What was stopped was said all the same: the model may be asked to go on.
            self._said.append({"role": "assistant", "content": "".join(pieces)})
        else:
            self._said.pop()
