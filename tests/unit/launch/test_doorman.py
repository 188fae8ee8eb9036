"""Before every worker is ready, whoever knocks is told so at once."""

import asyncio

import httpx
import pytest
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from roost.api import Doorman

APP = Starlette(
    routes=[Route(path, lambda _: PlainTextResponse("in")) for path in ("/ready", "/health")]
)


async def get(doorman: Doorman, path: str) -> httpx.Response:
    transport = httpx.ASGITransport(doorman)
    async with httpx.AsyncClient(transport=transport, base_url="http://roost") as client:
        return await client.get(path)


@pytest.mark.parametrize("path", ["/ready", "/health", "/metrics", "/generate", "/nowhere"])
def test_a_closed_door_is_503_on_every_path(path: str) -> None:
    answer = asyncio.run(get(Doorman(APP), path))
    assert answer.status_code == 503
    assert answer.json()["message"] == "The model is being loaded."
    assert (answer.headers["retry-after"], answer.headers["connection"]) == ("1", "close")
    dialect = asyncio.run(get(Doorman(APP), "/v1/chat/completions")).json()
    assert dialect["error"]["code"] == "loading"


def test_an_open_door_is_none_and_says_so_when_it_is_announced() -> None:
    doorman = Doorman(APP)
    doorman.is_open = True
    assert asyncio.run(get(doorman, "/health")).text == "in"
    assert asyncio.run(get(doorman, "/ready")).status_code == 503
    doorman.is_announced = True
    assert asyncio.run(get(doorman, "/ready")).text == "in"
