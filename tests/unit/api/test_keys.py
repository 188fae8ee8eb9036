"""Who may ask."""

import pytest
from tests.unit.api.rig import open_rig

from roost.api.auth import Keys, is_loopback
from roost.api.problems import Forbidden, Unauthenticated
from roost.sched.policies import FairShare

BODY = {"messages": [{"role": "user", "content": "hi"}]}


def test_a_key_is_asked_of_all_but_the_health_routes() -> None:
    with open_rig(api_key="sesame,second") as rig:
        for path in ("/health", "/ready", "/ping", "/health_generate", "/metrics"):
            assert rig.get(path).status_code == 200
            assert rig.run(rig.client.head(path)).status_code == 200
        for key in (None, "wrong", "", "sesam", "sesame2"):
            headers = {} if key is None else {"authorization": f"Bearer {key}"}
            response = rig.post("/v1/chat/completions", BODY, **headers)
            assert response.status_code == 401
            error = response.json()["error"]
            assert error["code"] == "invalid_api_key"
            assert error["type"] == "authentication_error"
        for key in ("sesame", "second"):
            bearer = {"authorization": f"Bearer {key}"}
            assert rig.post("/v1/chat/completions", BODY, **bearer).status_code == 200
            assert rig.get("/v1/models", **{"x-api-key": key}).status_code == 200
        assert "sesame" not in rig.get("/server_info", authorization="Bearer sesame").text
        assert rig.get("/generate").json()["object"] == "error"
        assert rig.run(rig.client.options("/v1/models")).status_code == 405


def test_whose_key_it_was_is_known_by_a_digest_where_keys_are_needed() -> None:
    keys = Keys((b"sesame", b"second"), None, True)
    tenants = {keys.tenant_of(key) for key in (b"sesame", b"second")}
    assert len(tenants) == 2
    assert all(len(tenant) == 16 and int(tenant, 16) for tenant in tenants)
    assert keys.tenant_of(None) == Keys((), None, True).tenant_of(b"sesame") == ""


@pytest.mark.parametrize(("keys", "is_known"), [("sesame", True), ("", False)])
def test_the_scheduler_is_told_who_asks(keys: str, is_known: bool) -> None:
    with open_rig(schedule_policy="fair", **({"api_key": keys} if keys else {})) as rig:
        asked = rig.post("/v1/chat/completions", BODY, authorization="Bearer sesame")
        assert asked.status_code == 200
        policy = rig.scheduler._door._line.policy
        assert isinstance(policy, FairShare)
        tenant = Keys((b"sesame",), None, True).tenant_of(b"sesame") if is_known else ""
        assert list(policy._served) == [tenant]


@pytest.mark.parametrize(
    ("keys", "path", "key", "refusal"),
    [
        (Keys((), None, True), "/flush_cache", None, None),
        (Keys((), None, False), "/flush_cache", None, Forbidden),
        (Keys((), None, False), "/generate", None, None),
        (Keys((b"a",), None, False), "/flush_cache", b"a", None),
        (Keys((b"a",), None, False), "/flush_cache", None, Unauthenticated),
        (Keys((b"a",), b"z", True), "/flush_cache", b"a", Forbidden),
        (Keys((b"a",), b"z", True), "/flush_cache", b"z", None),
        (Keys((b"a",), b"z", True), "/generate", b"z", None),
        (Keys((), b"z", True), "/generate", None, None),
        (Keys((), b"z", True), "/abort_request", None, Unauthenticated),
        (Keys((b"a",), b"z", True), "/pause_generation", b"a", Forbidden),
        (Keys((b"a",), b"z", True), "/continue_generation", b"a", Forbidden),
        (Keys((b"a",), b"z", True), "/configure_logging", b"a", Forbidden),
        (Keys((b"a",), b"z", True), "/open_session", b"a", None),
        (Keys((b"a",), b"z", True), "/close_session", b"a", None),
        (Keys((b"a",), b"z", True), "/sessions", b"a", None),
        (Keys((b"a",), b"z", True), "/sessions", None, Unauthenticated),
        (Keys((b"a",), b"z", False), "/health", None, None),
    ],
)
def test_control_calls_need_more(
    keys: Keys, path: str, key: bytes | None, refusal: type[Exception] | None
) -> None:
    if refusal is None:
        keys.check(path, key)
    else:
        with pytest.raises(refusal):
            keys.check(path, key)


@pytest.mark.parametrize(
    ("host", "expected"),
    [("127.0.0.1", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("x", False)],
)
def test_loopback_is_told_from_the_rest(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected
