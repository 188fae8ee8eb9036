"""Text ↔ ids for callers that want no answer: tokenise, render, spell."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from roost.frontend.ask import Prompt
from roost.frontend.intake import Intake, TextTools

_Result = TypeVar("_Result")


class TextDesk:
    """A model's text side. What may take long runs on `executor`, off the event loop."""

    def __init__(
        self, tools: TextTools, executor: ThreadPoolExecutor, intake: Callable[[], Intake]
    ) -> None:
        """intake: gives the checks that a prompt must pass, once the engine is known."""
        self._tools = tools
        self._executor = executor
        self._intake = intake

    async def encode(self, text: str, *, add_special: bool = True) -> list[int]:
        """Ids of `text`, special tokens in it parsed."""
        return await self._off_loop(
            lambda: self._tools.tokenizer.encode(text, add_special=add_special)
        )

    async def render(self, prompt: Prompt) -> tuple[str, list[int]]:
        """The text and the ids that a prompt becomes. Raises RequestError as `submit` would."""
        intake = self._intake()
        ids, text = await self._off_loop(lambda: intake.tokens_of(prompt))
        return (self.decode(ids, skip_special=False) if text is None else text), list(ids)

    def decode(self, ids: tuple[int, ...], *, skip_special: bool = True) -> str:
        """The text of a whole token list."""
        return self._tools.tokenizer.decode(ids, skip_special=skip_special)

    def token_bytes(self, token_id: int) -> bytes:
        """The exact bytes of one token."""
        return self._tools.tokenizer.token_bytes(token_id)

    async def _off_loop(self, work: Callable[[], _Result]) -> _Result:
        return await asyncio.get_running_loop().run_in_executor(self._executor, work)
