"""The ASGI application: routes, errors and keys put together."""

from collections.abc import Mapping

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from roost.api import (
    control,
    health,
    info,
    native,
    openai_chat,
    openai_completions,
    openai_models,
    sessions,
    tokens,
)
from roost.api.auth import Gate, Keys, is_loopback
from roost.api.problems import INTERNAL, MethodNotAllowed, NoSuchRoute, dialect_of, problem_of
from roost.api.service import Service
from roost.api.sse import ClientGone
from roost.core.clock import Clock, SystemClock
from roost.core.config import ServeConfig, ServerConfig
from roost.core.errors import RequestError, RoostError
from roost.frontend import Frontend


def create_app(
    frontend: Frontend,
    config: ServeConfig,
    *,
    reasons: Mapping[str, str] | None = None,
    clock: Clock | None = None,
) -> ASGIApp:
    """The HTTP face of a frontend that is open. `reasons`: where each setting comes from."""
    service = Service(
        frontend=frontend,
        config=config,
        clock=SystemClock() if clock is None else clock,
        reasons={} if reasons is None else reasons,
    )
    app = Starlette(
        routes=[
            *health.routes(service),
            *native.routes(service),
            *openai_chat.routes(service),
            *openai_completions.routes(service),
            *openai_models.routes(service),
            *tokens.routes(service),
            *info.routes(service),
            *control.routes(service),
            *sessions.routes(service),
        ],
        exception_handlers={
            RoostError: _on_error,
            HTTPException: _on_no_route,
            ClientGone: _on_departure,
            Exception: _on_bug,
        },
    )
    # A redirect would hide from clients that do not follow it what is wrong: a slash too many.
    app.router.redirect_slashes = False
    return Gate(app, _keys_of(config.server))


def _keys_of(server: ServerConfig) -> Keys:
    return Keys(
        api=tuple(key.encode() for key in server.api_key),
        admin=None if server.admin_key is None else server.admin_key.encode(),
        is_local=is_loopback(server.host),
    )


def _on_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, RoostError), "registered for this type"
    dialect = dialect_of(request.url.path)
    return problem_of(error, dialect).response(dialect)


def _on_no_route(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException), "registered for this type"
    dialect = dialect_of(request.url.path)
    path = request.url.path[:100]
    refusal: RequestError
    if error.status_code == MethodNotAllowed.http_status:
        allowed = (error.headers or {}).get("Allow", "")
        refusal = MethodNotAllowed(
            f"{path} does not take {request.method[:20]}, only {allowed}.", allowed=allowed
        )
    else:
        refusal = NoSuchRoute(f"There is no {path} here.")
    return problem_of(refusal, dialect).response(dialect)


def _on_departure(request: Request, error: Exception) -> Response:
    # Never sent, as nobody is there; for the access log.
    del request, error
    return Response(status_code=499)


def _on_bug(request: Request, error: Exception) -> Response:
    # The server logs the traceback; the client gets none of it.
    del error
    return INTERNAL.response(dialect_of(request.url.path))
