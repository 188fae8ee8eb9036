"""Is it alive, is it ready, does it generate; and its metrics. None of them needs a key."""

from typing import Final

import msgspec
from fastapi import APIRouter
from starlette.responses import Response

from roost.api.service import Service

# A load balancer's probe seldom waits longer; a step takes milliseconds.
_GENERATE_TIMEOUT_S: Final = 20.0
_PROBES: Final = ["GET", "HEAD"]


class Health(msgspec.Struct, frozen=True):
    status: str


def router(service: Service) -> APIRouter:
    """GET `/health`, `/ping`, `/ready`, `/health_generate` and `/metrics`."""
    routes = APIRouter()
    frontend = service.frontend

    @routes.api_route("/health", methods=_PROBES, response_model=None)
    @routes.api_route("/ping", methods=_PROBES, response_model=None)
    async def health() -> Response:
        return _answer(frontend.health.is_alive(), "ok", "the engine does not answer")

    @routes.api_route("/ready", methods=_PROBES, response_model=None)
    async def ready() -> Response:
        return _answer(frontend.health.is_ready(), "ready", "not taking requests")

    @routes.api_route("/health_generate", methods=_PROBES, response_model=None)
    async def health_generate() -> Response:
        generates = await frontend.health.generates(_GENERATE_TIMEOUT_S)
        return _answer(generates, "ok", "no token came")

    @routes.api_route("/metrics", methods=_PROBES, response_model=None)
    async def metrics() -> Response:
        return Response(frontend.metrics(), media_type="text/plain; version=0.0.4; charset=utf-8")

    return routes


def _answer(is_well: bool, yes: str, no: str) -> Response:
    body = msgspec.json.encode(Health(yes if is_well else no))
    headers = {"cache-control": "no-store"}
    return Response(body, 200 if is_well else 503, headers, "application/json")
