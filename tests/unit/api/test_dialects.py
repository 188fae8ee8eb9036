"""Each ending in each dialect, as the table of outcomes has it."""

import json

import pytest
from tests.unit.api.rig import Rig

from roost.api.endings import (
    EndingShape,
    anthropic_stop,
    is_answer,
    native_finish,
    openai_finish,
    problem_of_ending,
    shape_of,
)
from roost.api.problems import Dialect, Problem, dialect_of, problem_of
from roost.core.errors import PromptTooLong, RequestError, TooManyTokens
from roost.core.events import Ended, Usage
from roost.core.outcome import OUTCOMES, Outcome
from roost.core.refusal import ending_of

# outcome → status, native type and code; OpenAI's reason, or type and code; Anthropic's reason, or
# type. Of those that are no answer.
ERRORS = {
    Outcome.CLIENT_DISCONNECTED: (499, "client_closed_request", "invalid_request", None),
    Outcome.INVALID_REQUEST: (400, "invalid_request_error", "invalid_request", None),
    Outcome.QUEUE_FULL: (503, "service_unavailable_error", "queue_full", "overloaded_error"),
    Outcome.DEADLINE: (504, "timeout_error", "deadline", "timeout_error"),
    Outcome.SHUTTING_DOWN: (503, "service_unavailable_error", "shutting_down", "overloaded_error"),
    Outcome.ENGINE_FAULT: (500, "server_error", "engine_fault", "api_error"),
}
ANSWERS = {
    Outcome.STOP: ("stop", "stop", "end_turn"),
    Outcome.LENGTH: ("length", "length", "max_tokens"),
    Outcome.TOOL_CALLS: ("stop", "tool_calls", "tool_use"),
}


def test_the_tables_here_have_every_outcome() -> None:
    assert {*ERRORS, *ANSWERS, Outcome.CLIENT_CANCELLED} == set(Outcome)


@pytest.mark.parametrize("outcome", ANSWERS)
def test_an_answer_is_200_with_each_apis_word(outcome: Outcome) -> None:
    native, openai, anthropic = ANSWERS[outcome]
    shapes = shape_of(outcome)
    assert shapes.native == EndingShape(200, native, None, None)
    assert shapes.openai == EndingShape(200, openai, None, None)
    assert shapes.anthropic == EndingShape(200, anthropic, None, None)
    assert all(is_answer(Ended(outcome), dialect) for dialect in Dialect)


@pytest.mark.parametrize("outcome", ERRORS)
def test_what_is_no_answer_is_an_error_in_each_api(outcome: Outcome) -> None:
    status, kind, code, anthropic = ERRORS[outcome]
    shapes = shape_of(outcome)
    assert shapes.native == EndingShape(status, "abort", kind, status)
    assert shapes.openai == EndingShape(status, None, kind, code)
    anthropic_kind = anthropic or "invalid_request_error"
    assert shapes.anthropic == EndingShape(status, None, anthropic_kind, None)
    assert not any(is_answer(Ended(outcome), dialect) for dialect in Dialect)
    assert status == OUTCOMES[outcome].http_status


def test_an_abort_is_an_answer_in_the_native_api_alone() -> None:
    shapes = shape_of(Outcome.CLIENT_CANCELLED)
    assert shapes.native == EndingShape(200, "abort", None, None)
    assert shapes.openai == EndingShape(400, None, "invalid_request_error", "aborted")
    assert shapes.anthropic == EndingShape(400, None, "invalid_request_error", None)
    ended = Ended(Outcome.CLIENT_CANCELLED, message="enough")
    assert native_finish(ended) == {
        "type": "abort",
        "message": "enough",
        "status_code": None,
        "err_type": None,
    }
    assert problem_of_ending(ended, Dialect.OPENAI).message == "enough"


def test_an_ending_without_an_answer_says_why_in_the_native_finish_reason() -> None:
    ended = Ended(Outcome.DEADLINE, message="Request waiting timeout reached.")
    assert native_finish(ended) == {
        "type": "abort",
        "message": "Request waiting timeout reached.",
        "status_code": 504,
        "err_type": "deadline",
    }


def test_its_own_status_and_code_go_before_those_of_the_table() -> None:
    ended = Ended(Outcome.INVALID_REQUEST, message="no", code="not_found", status=404)
    problem = problem_of_ending(ended, Dialect.OPENAI)
    assert (problem.status, problem.code) == (404, "not_found")
    assert native_finish(ended) == {
        "type": "abort",
        "message": "no",
        "status_code": 404,
        "err_type": "not_found",
    }


def test_what_ended_an_answer_is_named() -> None:
    by_token = Ended(Outcome.STOP, matched=7)
    by_text = Ended(Outcome.STOP, matched="END")
    assert native_finish(by_token) == {"type": "stop", "matched": 7}
    assert native_finish(by_text) == {"type": "stop", "matched": "END"}
    assert [anthropic_stop(by_token), anthropic_stop(by_text)] == ["end_turn", "stop_sequence"]
    full = Ended(Outcome.LENGTH, Usage(num_completion_tokens=5))
    assert native_finish(full) == {"type": "length", "length": 5}
    assert [native_finish(None), openai_finish(None), anthropic_stop(None)] == [None, None, None]


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/generate", Dialect.NATIVE),
        ("/v1", Dialect.OPENAI),
        ("/v1/chat/completions", Dialect.OPENAI),
        ("/v1/messages", Dialect.ANTHROPIC),
        ("/v1/messages/count_tokens", Dialect.ANTHROPIC),
        ("/v1/messages2", Dialect.OPENAI),
        ("/v10", Dialect.NATIVE),
    ],
)
def test_a_path_has_its_dialect(path: str, expected: Dialect) -> None:
    assert dialect_of(path) is expected


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, "invalid_request_error"),
        (401, "authentication_error"),
        (403, "permission_error"),
        (404, "not_found_error"),
        (405, "invalid_request_error"),
        (413, "request_too_large"),
        (415, "invalid_request_error"),
        (429, "rate_limit_error"),
        (500, "api_error"),
        (503, "overloaded_error"),
        (504, "timeout_error"),
    ],
)
def test_anthropics_clients_read_its_envelope(status: int, kind: str) -> None:
    problem = Problem(status, "x", "because")
    body = b'{"error":{"type":"%s","message":"because"},"type":"error"}' % kind.encode()
    assert problem.body(Dialect.ANTHROPIC) == body
    assert problem.frame(Dialect.ANTHROPIC) == b"event: error\ndata: " + body + b"\n\n"


def test_a_route_of_anthropics_that_is_not_there_says_so_in_its_shape(rig: Rig) -> None:
    response = rig.post("/v1/messages", {})
    assert response.status_code == 404
    assert response.json() == {
        "type": "error",
        "error": {"type": "not_found_error", "message": "There is no /v1/messages here."},
    }


def test_what_is_too_long_is_said_in_the_words_that_agents_match() -> None:
    error = PromptTooLong(num_prompt_tokens=300, max_context_tokens=256)
    words = {dialect: problem_of(error, dialect).message for dialect in Dialect}
    assert words[Dialect.ANTHROPIC] == "prompt is too long: 300 tokens > 256 maximum"
    assert "maximum context length is 256 tokens" in words[Dialect.OPENAI]
    assert "longer than the model's context length (256 tokens)" in words[Dialect.NATIVE]


@pytest.mark.parametrize(
    "error",
    [
        PromptTooLong(num_prompt_tokens=300, max_context_tokens=256),
        TooManyTokens(num_prompt_tokens=200, max_new_tokens=57, limit_tokens=256),
    ],
)
@pytest.mark.parametrize("dialect", Dialect)
def test_the_engine_says_too_long_in_the_same_words(error: RequestError, dialect: Dialect) -> None:
    said = problem_of_ending(ending_of(error), dialect)
    assert (said.status, said.code) == (400, "context_length_exceeded")
    assert said.message == problem_of(error, dialect).message


@pytest.mark.parametrize("dialect", Dialect)
def test_a_body_stays_small_whatever_it_is_about(dialect: Dialect) -> None:
    error = RequestError("\x00👋" * 9000, param="é" * 9000)
    body = problem_of(error, dialect).body(dialect)
    assert len(body) < 4096
    assert "👋" in json.loads(body)["error"]["message"]
