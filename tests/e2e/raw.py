"""Clients of which a test decides when, and how, their connection ends; and what tests ask of many.

`http.client` on a connection of its own for each request: whichever HTTP worker accepts it answers.
"""

import json
import selectors
import socket
import struct
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from http.client import HTTPConnection, HTTPResponse
from types import TracebackType
from typing import Any, TypeVar

from tests.e2e.serving import PATIENCE_S, Served, until

T = TypeVar("T")
V = TypeVar("V")
# JSON that came from outside.
Json = Any
# Close with a reset instead of the usual goodbye.
_RESET = struct.pack("ii", 1, 0)


class Raw:
    """One request, sent when it is made. Closed at the end of its `with`, if not before."""

    def __init__(
        self,
        served: Served,
        path: str,
        body: Json = None,
        *,
        method: str = "POST",
        key: str | None = None,
    ) -> None:
        self._connection = HTTPConnection("127.0.0.1", served.port, timeout=PATIENCE_S)
        headers = {"content-type": "application/json"}
        if key is not None:
            headers["authorization"] = f"Bearer {key}"
        self.sent_s = time.monotonic()
        content = None if body is None else json.dumps(body).encode()
        self._connection.request(method, path, content, headers)
        assert self._connection.sock is not None
        self.socket: socket.socket = self._connection.sock
        self._response: HTTPResponse | None = None

    def __enter__(self) -> "Raw":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.leave()

    @property
    def response(self) -> HTTPResponse:
        """Its head has come."""
        if self._response is None:
            self._response = self._connection.getresponse()
        return self._response

    @property
    def status(self) -> int:
        return self.response.status

    def header(self, name: str) -> str | None:
        return self.response.getheader(name)

    def json(self) -> Json:
        """The whole body."""
        return json.loads(self.response.read() or b"null")

    def frames(self) -> Iterator[str]:
        """The events of a stream, as they come."""
        while line := self.response.readline():
            if line.startswith(b"data: "):
                yield line.removeprefix(b"data: ").decode().strip()

    def answered_s(self) -> float:
        """How long it took until the head of the answer came."""
        _ = self.response
        return time.monotonic() - self.sent_s

    def leave(self, *, by_reset: bool = False) -> None:
        """Close the connection, whatever is on its way: FIN, or RST."""
        if by_reset:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        if self._response is not None:
            self._response.close()
        self._connection.close()
        self.socket.close()


@contextmanager
def all_asked(served: Served, bodies: Iterable[Json]) -> Iterator[list[Raw]]:
    """One request for each body, sent; closed afterwards."""
    with ExitStack() as stack:
        yield [stack.enter_context(Raw(served, "/generate", body)) for body in bodies]


def answered_s(raws: Sequence[Raw]) -> list[float]:
    """How long each waited for the first byte of its answer; with little work for this side."""
    waits = []
    with selectors.DefaultSelector() as selector:
        for raw in raws:
            selector.register(raw.socket, selectors.EVENT_READ, raw)
        while selector.get_map():
            ready = selector.select(PATIENCE_S)
            assert ready, "some were never answered"
            now_s = time.monotonic()
            for key, _ in ready:
                waits.append(now_s - key.data.sent_s)
                selector.unregister(key.fileobj)
    return waits


def call(served: Served, path: str, body: Json = None, *, method: str = "POST") -> tuple[int, Json]:
    """Status and body of one request on a fresh connection."""
    with Raw(served, path, body, method=method) as raw:
        return raw.status, raw.json()


def get(served: Served, path: str) -> tuple[int, Json]:
    return call(served, path, method="GET")


def asking(
    text: str, num_tokens: int, *, stream: bool = False, n: int = 1, **more: Json
) -> dict[str, Json]:
    """A body of /generate that goes on for exactly `num_tokens`, the likeliest each time."""
    sampling = {"max_new_tokens": num_tokens, "ignore_eos": True, "temperature": 0, "n": n}
    return {"text": text, "sampling_params": sampling, "stream": stream, **more}


def generate(served: Served, text: str, num_tokens: int, **more: Json) -> Json:
    """The answer of one request that goes well."""
    status, answer = call(served, "/generate", asking(text, num_tokens, **more))
    assert status == 200, answer
    return answer


def abort(served: Served, rid: str) -> int:
    """How many answers of that name there were to end."""
    status, done = call(served, "/abort_request", {"rid": rid})
    assert status == 200, done
    assert done["success"] is True
    count: int = done["count"]
    return count


@contextmanager
def paused(served: Served) -> Iterator[None]:
    """The engine plans no step; what runs and waits stays as it is."""
    assert call(served, "/pause_generation", {"mode": "in_place"})[0] == 200
    try:
        yield
    finally:
        assert call(served, "/continue_generation", {})[0] == 200


def at_once(do: Callable[[V], T], values: Iterable[V], most: int = 256) -> list[T]:
    """`do` each in a thread of its own."""
    todo = list(values)
    with ThreadPoolExecutor(min(most, len(todo))) as pool:
        return list(pool.map(do, todo))


def load(served: Served) -> dict[str, int]:
    """What the engine said of itself last: half a second ago at most."""
    _, (found,) = get(served, "/v1/loads")
    return {name: int(value) for name, value in found.items()}


def settled(served: Served) -> dict[str, int]:
    """The engine's figures when nothing lives, as every worker has heard them."""
    until(lambda: is_idle(served), 20)
    time.sleep(0.6)  # a heartbeat, so that no worker knows an older figure
    return load(served)


def is_idle(served: Served) -> bool:
    """Nothing lives, in any process, and no memory is held."""
    names = ("num_reqs", "num_used_tokens")
    figures = load(served)
    return all(figures[n] == 0 for n in names) and served.metric("roost_requests_in_flight") == 0


def has_in_flight(served: Served, num_requests: int) -> bool:
    """So many requests have come in and not ended, in all processes together."""
    return served.metric("roost_requests_in_flight") == num_requests


def outcomes(served: Served) -> dict[str, int]:
    """How many requests ended, by outcome."""
    return samples(served, "roost_requests_total")


def samples(served: Served, family: str) -> dict[str, int]:
    """A labelled counter of /metrics by its label."""
    with Raw(served, "/metrics", method="GET") as raw:
        lines = raw.response.read().decode().splitlines()
    found = (line.rpartition(" ") for line in lines if line.startswith(family + "{"))
    return {series.split('"')[1]: int(float(value)) for series, _, value in found}


def risen(before: dict[str, int], after: dict[str, int]) -> dict[str, int]:
    """What has risen, and by how much."""
    return {name: after[name] - count for name, count in before.items() if after[name] != count}
