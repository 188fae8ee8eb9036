"""Who answers in `roost chat`: a server somewhere, or a model in this process."""

import json
from collections.abc import Generator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

import httpx

from roost.core.errors import RequestError, RoostError

Message = dict[str, str]

# A long prompt may wait in a queue; a server that is not there is noticed when connecting.
_TIMEOUTS = httpx.Timeout(None, connect=10.0)


@dataclass(frozen=True, slots=True)
class ChatOptions:
    """How answers are drawn. `system`: the first message of every conversation."""

    system: str | None
    temperature: float
    max_tokens: int | None
    seed: int | None


class Talker(AbstractContextManager["Talker"], Protocol):
    """Answers a conversation. Closing the generator cancels the answer."""

    def name(self) -> str:
        """What is talked to, for people. Raises RoostError when nobody is there."""
        ...

    def answer(self, messages: Sequence[Message]) -> Generator[str, None, None]:
        """The answer's text as it comes. Raises RoostError."""
        ...


class ServerTalker:
    """A server that speaks OpenAI's chat API."""

    def __init__(self, url: str, options: ChatOptions, api_key: str | None) -> None:
        headers = {} if api_key is None else {"authorization": f"Bearer {api_key}"}
        base = url.rstrip("/").removesuffix("/v1")
        self._client = httpx.Client(base_url=base, headers=headers, timeout=_TIMEOUTS)
        self._options = options
        self._model = ""

    def __enter__(self) -> "ServerTalker":
        return self

    def __exit__(self, *exc: object) -> None:
        self._client.close()

    def name(self) -> str:
        try:
            response = self._client.get("/v1/models")
        except httpx.HTTPError as error:
            raise RoostError(f"no server at {self._client.base_url}: {error}") from None
        _check(response)
        self._model = str(response.json()["data"][0]["id"])
        return f"{self._model} at {self._client.base_url}"

    def answer(self, messages: Sequence[Message]) -> Generator[str, None, None]:
        options = self._options
        body = {
            "model": self._model,
            "messages": messages,
            "stream": True,
            "temperature": options.temperature,
            "max_tokens": options.max_tokens,
            "seed": options.seed,
        }
        try:
            with self._client.stream("POST", "/v1/chat/completions", json=body) as response:
                if response.status_code != httpx.codes.OK:
                    response.read()
                    _check(response)
                for line in response.iter_lines():
                    if line.startswith("data: ") and line != "data: [DONE]":
                        yield _text_of(line.removeprefix("data: "))
        except httpx.HTTPError as error:
            raise RoostError(f"the connection broke: {error}") from None


def _text_of(frame: str) -> str:
    """What a chunk adds. Raises RequestError for an error frame."""
    chunk = json.loads(frame)
    if "error" in chunk:
        raise RequestError(str(chunk["error"].get("message", "the answer broke off")))
    return "".join(choice["delta"].get("content") or "" for choice in chunk["choices"])


def _check(response: httpx.Response) -> None:
    if response.status_code == httpx.codes.OK:
        return
    try:
        message = str(response.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        message = response.text[:200]
    raise RequestError(f"the server answered {response.status_code}: {message}")
