"""No body, however odd, makes a 500; and the server still answers."""

import json

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.unit.api.rig import Rig, open_rig

from roost.api.chat_body import ChatFields
from roost.api.completions_body import CompletionFields
from roost.api.control import FlushFields, LoggingFields
from roost.api.native_body import GenerateBody
from roost.api.openai_sampling import CallFields, SamplingFields
from roost.api.session_params import SessionFields
from roost.api.sessions import CloseFields, OpenFields
from roost.core.params import SamplingParams

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.sampled_from([0, 1, -1, 2, 3, 10**9, -(2**63), 2**64, 10**400, 1.5, 1e308, -0.0]),
    st.sampled_from(["", "a", "hi", "é👋", "\x00", "x" * 300, "default", "demo", "user", "text"]),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.sampled_from(["role", "content", "type", "text", "5", "9" * 5000, ""]),
            inner,
            max_size=3,
        ),
    ),
    max_leaves=6,
)
SAMPLING = st.dictionaries(st.sampled_from(SamplingParams.__struct_fields__), VALUES, max_size=4)
SESSION = SessionFields.__struct_fields__
CALLS = (
    *(*OpenFields.__struct_fields__, *CloseFields.__struct_fields__),
    *(*FlushFields.__struct_fields__, *LoggingFields.__struct_fields__),
)
OPENAI = (*CallFields.__struct_fields__, *SamplingFields.__struct_fields__)
BODIES = st.one_of(
    st.tuples(
        st.just("/generate"),
        st.fixed_dictionaries({"text": st.just("hi"), "sampling_params": SAMPLING}),
    ),
    st.tuples(
        st.just("/generate"),
        st.dictionaries(st.sampled_from(GenerateBody.__struct_fields__), VALUES, max_size=5),
    ),
    st.tuples(
        st.just("/v1/chat/completions"),
        st.dictionaries(
            st.sampled_from((*ChatFields.__struct_fields__, *OPENAI)), VALUES, max_size=5
        ).map(lambda fields: {"messages": [{"role": "user", "content": "hi"}], **fields}),
    ),
    st.tuples(
        st.just("/v1/completions"),
        st.dictionaries(
            st.sampled_from((*CompletionFields.__struct_fields__, *OPENAI)), VALUES, max_size=5
        ).map(lambda fields: {"prompt": "hi", **fields}),
    ),
    st.tuples(
        st.sampled_from(
            [
                ("/generate", {"text": "hi"}),
                ("/v1/completions", {"prompt": "hi"}),
                ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]}),
            ]
        ),
        st.dictionaries(st.sampled_from(SESSION), VALUES, max_size=4),
    ).map(lambda g: (g[0][0], {**g[0][1], "session_params": {"id": "s", **g[1]}})),
    st.tuples(
        # A pause would last, and what comes after it would wait.
        st.sampled_from(
            ["/open_session", "/close_session", "/flush_cache", "/configure_logging"],
        ),
        st.dictionaries(st.sampled_from(CALLS), VALUES, max_size=3),
    ),
    st.tuples(
        st.sampled_from(["/tokenize", "/detokenize", "/abort_request"]),
        st.dictionaries(
            st.sampled_from(["prompt", "messages", "tokens", "rid", "abort_all", "model"]),
            VALUES,
            max_size=3,
        ),
    ),
)


def test_no_body_makes_a_500() -> None:
    with open_rig(max_running_requests=8) as rig:
        rig.parrot.reply = b"ok"
        rig.post("/open_session", {"session_id": "s"})
        _fuzz(rig)
        rig.parrot.reply = b"Hello"
        assert rig.post("/generate", {"text": "hi"}).json()["text"] == "Hello"
        assert rig.frontend.live == ()
        assert rig.scheduler.load().num_used_pages == 0


def _fuzz(rig: Rig) -> None:
    @settings(
        max_examples=400,
        deadline=None,
        database=None,
        suppress_health_check=[HealthCheck.too_slow],
    )
    @given(BODIES)
    def one(asked: tuple[str, dict[str, object]]) -> None:
        path, body = asked
        response = rig.post(path, json.dumps(body).encode())
        assert response.status_code in (200, 400, 404), (path, body, response.text)
        assert response.status_code == 200 or len(response.content) < 4096

    one()
