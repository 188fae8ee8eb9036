"""Nobody is let in before the house is ready: 503 at once, in place of a connection that hangs."""

from typing import Final

from starlette.types import ASGIApp, Receive, Scope, Send

from roost.api.problems import Problem, dialect_of

_NOT_YET: Final = Problem(503, "loading", "The model is being loaded.", closes_connection=True)


class Doorman:
    """The middleware, for the time before an application can answer.

    is_open: the application hears requests; before, every path is refused, the probes' too.
    is_announced: `/ready` may say so. For a server of several processes that is later: who is told
    by one of them that it is ready may be answered by another.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self.is_open = False
        self.is_announced = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or self._lets_in(str(scope["path"])):
            await self._app(scope, receive, send)
            return
        dialect = dialect_of(str(scope["path"]))
        await _NOT_YET.response(dialect)(scope, receive, send)

    def _lets_in(self, path: str) -> bool:
        return self.is_open and (self.is_announced or path != "/ready")
