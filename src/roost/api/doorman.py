"""Nobody is let in before the house is ready: 503 at once, in place of a connection that hangs."""

from typing import Final

from starlette.types import ASGIApp, Receive, Scope, Send

from roost.api.problems import Problem, dialect_of

_NOT_YET: Final = Problem(503, "loading", "The model is being loaded.", closes_connection=True)


class Doorman:
    """The middleware. Every path is refused until `is_open`, the probes' too: nothing here is of
    use before, and who connects again may find a worker that is.
    """

    def __init__(self, app: ASGIApp, *, is_open: bool) -> None:
        self._app = app
        self.is_open = is_open

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self.is_open or scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        dialect = dialect_of(str(scope["path"]))
        await _NOT_YET.response(dialect)(scope, receive, send)
