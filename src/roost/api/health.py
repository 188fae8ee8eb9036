"""Is it alive, is it ready, does it generate; and its metrics. None of them needs a key."""

from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from roost.api.service import Service
from roost.api.sse import until_gone

# A load balancer's probe seldom waits longer; a step takes milliseconds.
_GENERATE_TIMEOUT_S: Final = 20.0


class Health(msgspec.Struct, frozen=True):
    status: str


def routes(service: Service) -> list[Route]:
    """GET `/health`, `/ping`, `/ready`, `/health_generate` and `/metrics`."""
    frontend = service.frontend

    async def health(_: Request) -> Response:
        return _answer(frontend.health.is_alive(), "ok", "the engine does not answer")

    async def ready(_: Request) -> Response:
        return _answer(frontend.health.is_ready(), "ready", "not taking requests")

    async def health_generate(request: Request) -> Response:
        generates = await until_gone(
            frontend.health.generates(_GENERATE_TIMEOUT_S), request.receive
        )
        return _answer(generates, "ok", "no token came")

    async def metrics(_: Request) -> Response:
        return Response(frontend.metrics(), media_type="text/plain; version=0.0.4; charset=utf-8")

    return [
        Route(path, endpoint, methods=["GET", "HEAD"])
        for path, endpoint in (
            ("/health", health),
            ("/ping", health),
            ("/ready", ready),
            ("/health_generate", health_generate),
            ("/metrics", metrics),
        )
    ]


def _answer(is_well: bool, yes: str, no: str) -> Response:
    body = msgspec.json.encode(Health(yes if is_well else no))
    headers = {"cache-control": "no-store"}
    return Response(body, 200 if is_well else 503, headers, "application/json")
