"""Whoever waits for the engine stops waiting when the client has left."""

import asyncio

import pytest
from tests.unit.api.rig import Client, Json, Rig

CALLS: list[tuple[str, str, Json | None]] = [
    ("POST", "/abort_request", {"abort_all": True}),
    ("POST", "/flush_cache", {"timeout": 60}),
    ("POST", "/pause_generation", {"mode": "in_place"}),
    ("POST", "/continue_generation", None),
    ("POST", "/configure_logging", {"log_level": "info"}),
    ("POST", "/open_session", {"session_id": "s"}),
    ("POST", "/close_session", {"session_id": "s"}),
    ("GET", "/sessions", None),
    ("GET", "/health_generate", None),
    ("POST", "/generate", {"text": "hi"}),
]


@pytest.mark.parametrize(("method", "path", "body"), CALLS)
def test_a_call_ends_with_its_client(rig: Rig, method: str, path: str, body: Json | None) -> None:
    async def scene() -> Client:
        # The engine is in the middle of a step, and answers nobody.
        rig.parrot.gate.clear()
        rig.parrot.is_asked.clear()
        busy = asyncio.create_task(Client(rig, "/generate", {"text": "hi"}).run())
        assert await asyncio.to_thread(rig.parrot.is_asked.wait, 10)
        client = Client(rig, path, body, method=method)
        call = asyncio.create_task(client.run())
        done, _ = await asyncio.wait({call}, timeout=0.05)
        assert not done
        client.leaves.set()
        await asyncio.wait_for(call, 5)
        rig.parrot.gate.set()
        # The engine has got what was asked of it, and does it.
        await rig.client.post("/continue_generation")
        await busy
        return client

    client = rig.run(scene())
    assert client.status == 499
    assert rig.post("/generate", {"text": "hi"}).json()["text"] == "Hello"
    assert rig.frontend.live == ()
