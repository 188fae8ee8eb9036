"""Sessions: opened, closed and listed. The paths and names are SGLang's."""

from typing import Annotated, Final
from uuid import uuid4

import msgspec
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from roost.api.body import NOT_YET, read_fields, seconds, short_text
from roost.api.service import Service
from roost.api.session_params import MAX_ID_CHARS
from roost.api.sse import until_gone
from roost.core.calls import CloseSession, ListSessions, OpenSession

# Fields that every SGLang request has, for its own processes.
_IGNORED: Final = dict.fromkeys(("rid", "http_worker_ipc"), "")


class OpenFields(msgspec.Struct, frozen=True):
    """session_id: absent: drawn. capacity_of_str_len: characters of a turn's whole prompt; 0: any
    number. timeout: seconds without a turn, after which it closes; absent: the server's.
    """

    session_id: str | None = None
    capacity_of_str_len: Annotated[int, Meta(ge=0)] | None = None
    timeout: float | None = None


class CloseFields(msgspec.Struct, frozen=True):
    session_id: str


class Closed(msgspec.Struct, frozen=True):
    success: bool
    message: str


def routes(service: Service) -> list[Route]:
    """GET and POST `/open_session` and `/close_session`; GET `/sessions`."""
    frontend = service.frontend
    max_bytes = service.config.server.max_request_bytes

    async def open_session(request: Request) -> Response:
        asked = await read_fields(
            request, max_bytes, OpenFields, refused={"streaming": NOT_YET}, ignored=_IGNORED
        )
        session_id = short_text(asked.session_id, "session_id", MAX_ID_CHARS) or uuid4().hex
        call = OpenSession(
            session_id,
            capacity_chars=asked.capacity_of_str_len or 0,
            timeout_s=seconds(asked.timeout, "timeout"),
        )
        await until_gone(frontend.call(call), request.receive)
        return Response(msgspec.json.encode(session_id), media_type="application/json")

    async def close_session(request: Request) -> Response:
        asked = await read_fields(request, max_bytes, CloseFields, ignored=_IGNORED)
        short_text(asked.session_id, "session_id", MAX_ID_CHARS)
        done = await until_gone(frontend.call(CloseSession(asked.session_id)), request.receive)
        closed = Closed(True, done.message or "The session is closed.")
        return Response(msgspec.json.encode(closed), media_type="application/json")

    async def sessions(request: Request) -> Response:
        done = await until_gone(frontend.call(ListSessions()), request.receive)
        return Response(done.result, media_type="application/json")

    return [
        Route("/open_session", open_session, methods=["GET", "POST"]),
        Route("/close_session", close_session, methods=["GET", "POST"]),
        Route("/sessions", sessions),
    ]
