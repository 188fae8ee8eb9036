"""Who may ask: keys, compared in constant time.

Plain ASGI: a middleware that wraps the response would hide from it that its client has left.
"""

import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import sha256
from hmac import compare_digest
from typing import Final

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from roost.api.problems import Forbidden, Unauthenticated, dialect_of, problem_of

OPEN_PATHS: Final = frozenset(
    {"/health", "/health_generate", "/ready", "/ping", "/metrics"},
)
CONTROL_PATHS: Final = frozenset(
    {
        *("/abort_request", "/flush_cache", "/pause_generation", "/continue_generation"),
        "/configure_logging",
    },
)


def is_loopback(host: str) -> bool:
    """Whether a server that listens on `host` can be reached from this machine only."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


@dataclass(frozen=True, slots=True)
class Keys:
    """Which keys open what. A control call needs the admin key; without one, an API key does.

    is_local: the server listens on loopback, so that control calls need no key when there is none.
    """

    api: tuple[bytes, ...]
    admin: bytes | None
    is_local: bool

    def check(self, path: str, key: bytes | None) -> None:
        """Raises Unauthenticated or Forbidden."""
        if path in OPEN_PATHS:
            return
        admin = () if self.admin is None else (self.admin,)
        if path in CONTROL_PATHS:
            wanted = admin or self.api
            if not wanted and not self.is_local:
                raise Forbidden(
                    "Control calls need --admin-key or --api-key on a server that listens beyond "
                    "this machine."
                )
        else:
            wanted = (*self.api, *admin) if self.api else ()
        if not wanted or _is_any(key, wanted):
            return
        if key is not None and _is_any(key, self.api):
            raise Forbidden("This call needs the admin key.")
        raise Unauthenticated("Incorrect or missing API key.")

    def tenant_of(self, key: bytes | None) -> str:
        """Who asks with this key, which was checked: a digest that says no more of it than whether
        it is the same as another's. "": this server knows no keys.
        """
        return "" if not self.api or key is None else sha256(key).hexdigest()[:16]


def tenant_of(scope: Scope) -> str:
    """As the gate found it, if it has a gate."""
    state: dict[str, str] = scope.get("state", {})
    return state.get("tenant", "")


def _is_any(key: bytes | None, wanted: Iterable[bytes]) -> bool:
    given = b"" if key is None else key
    # Every key is compared, so that the time tells nothing of which one is near.
    return sum(compare_digest(given, one) for one in wanted) > 0


class Gate:
    """The middleware. OPTIONS passes, as browsers send it without a key."""

    def __init__(self, app: ASGIApp, keys: Keys) -> None:
        self._app = app
        self._keys = keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] != "OPTIONS":
            path = str(scope["path"])
            key = _key_of(Headers(scope=scope))
            try:
                self._keys.check(path, key)
            except (Forbidden, Unauthenticated) as error:
                dialect = dialect_of(path)
                await problem_of(error, dialect).response(dialect)(scope, receive, send)
                return
            scope.setdefault("state", {})["tenant"] = self._keys.tenant_of(key)
        await self._app(scope, receive, send)


def _key_of(headers: Headers) -> bytes | None:
    scheme, _, token = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        return token.strip().encode("latin-1")
    given = headers.get("x-api-key")
    return None if given is None else given.encode("latin-1")
