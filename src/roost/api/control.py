"""Calls on the whole server rather than to the model. They may need the admin key."""

from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from roost.api.body import NOT_YET, read_fields, seconds, short_text
from roost.api.service import Service
from roost.api.sse import until_gone
from roost.core.calls import FlushCache, LogLevel, Pause, PauseMode, Resume, SetLogLevel
from roost.core.errors import RequestError

# Fields of SGLang's requests that change nothing here.
_IGNORED: Final = dict.fromkeys(
    ("rid", "http_worker_ipc", "finished_reason", "torch_empty_cache"), ""
)
_NOT_LOGGED: Final = dict.fromkeys(
    (
        *("log_requests", "log_requests_level", "log_requests_format", "log_requests_target"),
        *("dump_requests_folder", "dump_requests_threshold", "crash_dump_folder"),
        "dump_requests_exclude_meta_keys",
    ),
    NOT_YET,
)
_MAX_RID_CHARS: Final = 256
# What an aborted client reads; it is logged, too.
_MAX_MESSAGE_CHARS: Final = 1000


class AbortFields(msgspec.Struct, frozen=True):
    """`rid` is exact: of one answer, or of a call with all its answers."""

    rid: str | None = None
    abort_all: bool = False
    abort_message: str | None = None


class FlushFields(msgspec.Struct, frozen=True):
    """timeout: seconds to wait until nothing runs."""

    timeout: float | None = None


class PauseFields(msgspec.Struct, frozen=True):
    mode: PauseMode = "abort"


class ResumeFields(msgspec.Struct, frozen=True):
    """It takes none."""


class LoggingFields(msgspec.Struct, frozen=True):
    log_level: LogLevel


class ControlResult(msgspec.Struct, frozen=True):
    """count: requests that the call ended."""

    success: bool
    message: str
    count: int


class Controls:
    """The calls, each as an endpoint."""

    def __init__(self, service: Service) -> None:
        self._frontend = service.frontend
        self._max_bytes = service.config.server.max_request_bytes

    async def abort_request(self, request: Request) -> Response:
        asked = await read_fields(request, self._max_bytes, AbortFields, ignored=_IGNORED)
        # SGLang's clients send an empty rid with abort_all.
        name = asked.rid or None if asked.abort_all else asked.rid
        if name is None and not asked.abort_all:
            raise RequestError("Give rid, or abort_all.", param="rid")
        if name is not None and asked.abort_all:
            raise RequestError("Give rid or abort_all, not both.", param="rid")
        short_text(name, "rid", _MAX_RID_CHARS)
        message = asked.abort_message or ""
        short_text(message, "abort_message", _MAX_MESSAGE_CHARS, min_chars=0)
        done = await until_gone(self._frontend.abort(name, message), request.receive)
        if done.count == 0:
            # A finished request is no error.
            whom = "No request is here" if name is None else "No request of that id is here"
            return _result(f"{whom}; nothing to end.")
        return _result(f"{_requests(done.count)} ended.", done.count)

    async def flush_cache(self, request: Request) -> Response:
        asked = await read_fields(request, self._max_bytes, FlushFields, ignored=_IGNORED)
        timeout_s = seconds(asked.timeout, "timeout", is_zero_fine=True)
        done = await until_gone(self._frontend.call(FlushCache(timeout_s)), request.receive)
        return _result(done.message or "The cache is empty.")

    async def pause_generation(self, request: Request) -> Response:
        asked = await read_fields(request, self._max_bytes, PauseFields, ignored=_IGNORED)
        done = await until_gone(self._frontend.call(Pause(asked.mode)), request.receive)
        return _result(done.message or "Paused; what comes in waits.", done.count)

    async def continue_generation(self, request: Request) -> Response:
        await read_fields(request, self._max_bytes, ResumeFields, ignored=_IGNORED)
        done = await until_gone(self._frontend.call(Resume()), request.receive)
        return _result(done.message or "Going on.", done.count)

    async def configure_logging(self, request: Request) -> Response:
        asked = await read_fields(
            request, self._max_bytes, LoggingFields, refused=_NOT_LOGGED, ignored=_IGNORED
        )
        call = SetLogLevel(asked.log_level)
        done = await until_gone(self._frontend.call(call), request.receive)
        return _result(done.message or f"Every process logs from {asked.log_level} on.")


def routes(service: Service) -> list[Route]:
    """POST `/abort_request`, `/pause_generation`, `/continue_generation`, `/configure_logging`;
    GET and POST `/flush_cache`.
    """
    controls = Controls(service)
    return [
        Route("/abort_request", controls.abort_request, methods=["POST"]),
        Route("/flush_cache", controls.flush_cache, methods=["GET", "POST"]),
        Route("/pause_generation", controls.pause_generation, methods=["POST"]),
        Route("/continue_generation", controls.continue_generation, methods=["POST"]),
        Route("/configure_logging", controls.configure_logging, methods=["POST"]),
    ]


def _requests(count: int) -> str:
    return "1 request" if count == 1 else f"{count} requests"


def _result(message: str, count: int = 0) -> Response:
    body = msgspec.json.encode(ControlResult(True, message, count))
    return Response(body, media_type="application/json")
