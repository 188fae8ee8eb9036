"""Calls on the engine rather than to the model: abort and flush. They may need the admin key."""

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from roost.api.body import parse, read_body
from roost.api.service import Service
from roost.core.errors import RequestError


class AbortBody(msgspec.Struct, frozen=True):
    """`rid` is exact: of one answer, or of a call with all its answers."""

    rid: str = ""
    abort_all: bool = False


class ControlResult(msgspec.Struct, frozen=True):
    success: bool
    message: str


def routes(service: Service) -> list[Route]:
    """POST `/abort_request`; GET and POST `/flush_cache`."""
    frontend = service.frontend

    async def abort_request(request: Request) -> Response:
        body = await read_body(request, service.config.server.max_request_bytes)
        asked = parse(body, AbortBody)
        if asked.abort_all:
            done = await frontend.control("abort_all")
            return _result(ControlResult(done.is_ok, done.message or "All requests end."))
        if not asked.rid:
            raise RequestError("Give rid, or abort_all.", param="rid")
        if frontend.abort(asked.rid):
            return _result(ControlResult(True, "The request ends."))
        # A finished request is no error, and another front may know it.
        return _result(ControlResult(True, "No request of that id runs here; nothing to end."))

    async def flush_cache(_: Request) -> Response:
        done = await frontend.control("flush_cache")
        return _result(ControlResult(done.is_ok, done.message or "The cache is empty."))

    return [
        Route("/abort_request", abort_request, methods=["POST"]),
        Route("/flush_cache", flush_cache, methods=["GET", "POST"]),
    ]


def _result(result: ControlResult) -> Response:
    status = 200 if result.success else 400
    return Response(msgspec.json.encode(result), status, media_type="application/json")
