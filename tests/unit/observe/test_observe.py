"""What is shown of requests follows from their events, by the table."""

import io
import json
import logging
import math
from collections.abc import Iterator

import pytest
from prometheus_client.parser import text_string_to_metric_families

from roost.core.events import Accepted, Delta, Ended, Started, Usage
from roost.core.outcome import OUTCOMES, Outcome
from roost.core.request import HEALTH_PREFIX, Envelope, Origin, RequestId
from roost.observe import (
    EndingLog,
    EngineFigures,
    LogFormat,
    Meter,
    configure_logging,
    trace_of,
)
from roost.observe.trace import trace_id_of

TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


def envelope(rid: str = "r", trace: str = "") -> Envelope:
    return Envelope(RequestId(rid), Origin(0, 1), 10.0, math.inf, 0, trace)


def samples(meter: Meter) -> dict[str, float]:
    """name{label values} → value."""
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(meter.exposition().decode()):
        for sample in family.samples:
            labels = ",".join(sample.labels.values())
            found[sample.name + (f"{{{labels}}}" if labels else "")] = sample.value
    return found


@pytest.mark.parametrize("outcome", list(Outcome))
def test_each_outcome_moves_its_own_counter_and_a_fault_only_where_it_is_one(
    outcome: Outcome,
) -> None:
    meter = Meter()
    meter.opened(envelope())
    meter.see(envelope(), Ended(outcome, Usage(5, 2, 1, 3)), 11.0)
    found = samples(meter)
    for other in Outcome:
        assert found[f"roost_requests_total{{{other}}}"] == (other is outcome)
    assert found["roost_server_faults_total"] == OUTCOMES[outcome].is_server_fault
    assert found["roost_requests_in_flight"] == 0
    assert found["roost_prompt_tokens_total"] == 5
    assert found["roost_cached_tokens_total"] == 1
    assert found["roost_retractions_total"] == 3


def test_latencies_are_those_of_the_events() -> None:
    meter = Meter()
    meter.opened(envelope())
    for event, now_s in (
        (Accepted(), 10.1),
        (Started(0), 10.2),
        (Delta((1,)), 10.5),
        (Delta((2, 3)), 10.7),
        (Delta(()), 10.9),
        (Ended(Outcome.LENGTH, Usage(queue_s=0.2)), 11.0),
    ):
        meter.see(envelope(), event, now_s)
    found = samples(meter)
    assert found["roost_time_to_first_token_seconds_sum"] == pytest.approx(0.5)
    assert found["roost_inter_token_latency_seconds_count"] == 2
    assert found["roost_inter_token_latency_seconds_sum"] == pytest.approx(0.2)
    assert found["roost_generation_tokens_total"] == 3
    assert found["roost_request_latency_seconds_sum"] == pytest.approx(1.0)
    assert found["roost_queue_time_seconds_sum"] == pytest.approx(0.2)


def test_a_health_check_is_no_traffic() -> None:
    meter = Meter()
    check = envelope(f"{HEALTH_PREFIX}_1")
    before = samples(meter)
    meter.opened(check)
    meter.see(check, Delta((1,)), 11.0)
    meter.see(check, Ended(Outcome.LENGTH), 11.0)
    meter.refused(check, Ended(Outcome.QUEUE_FULL))
    assert samples(meter) == before


def test_the_engine_is_shown_as_it_was_heard() -> None:
    meter = Meter()
    meter.engine(EngineFigures(is_alive=True, num_running=3, num_waiting=4, num_kv_tokens=99))
    found = samples(meter)
    assert found["roost_engine_up"] == 1
    assert found["roost_engine_running_requests"] == 3
    assert found["roost_engine_waiting_requests"] == 4
    assert found["roost_engine_kv_tokens"] == 99


@pytest.mark.parametrize("outcome", list(Outcome))
@pytest.mark.parametrize("rid", ["r", f"{HEALTH_PREFIX}_1"])
def test_an_ending_is_one_line_at_its_tables_level(
    outcome: Outcome, rid: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    EndingLog().ended(envelope(rid, TRACE), Ended(outcome, message="x" * 999), 12.5)
    (line,) = caplog.records
    assert line.levelno == (logging.DEBUG if rid != "r" else OUTCOMES[outcome].log_level)
    assert line.__dict__["outcome"] == str(outcome)
    assert line.__dict__["status"] == OUTCOMES[outcome].http_status
    assert line.__dict__["total_s"] == 2.5
    assert line.__dict__["trace_id"] == "4bf92f3577b34da6a3ce929d0e0e4736"
    assert len(line.__dict__["reason"]) == 300


@pytest.fixture
def root_logger() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.mark.usefixtures("root_logger")
def test_a_json_log_is_one_object_a_line() -> None:
    out = io.StringIO()
    configure_logging("info", "json", out)
    EndingLog().ended(envelope(), Ended(Outcome.ENGINE_FAULT, message="two\nlines"), 12.0)
    logging.getLogger("elsewhere").debug("not shown")
    logging.getLogger("elsewhere").warning("a %s", "word")
    first, second = (json.loads(line) for line in out.getvalue().splitlines())
    assert (first["event"], first["level"], first["rid"]) == ("request ended", "error", "r")
    assert (first["outcome"], first["reason"]) == ("engine_fault", "two\nlines")
    assert (second["event"], second["level"]) == ("a word", "warning")


@pytest.mark.usefixtures("root_logger")
def test_a_log_for_people_is_a_line() -> None:
    out = io.StringIO()
    configure_logging("info", "console", out)
    EndingLog().ended(envelope(), Ended(Outcome.STOP), 12.0)
    (line,) = out.getvalue().splitlines()
    assert "[info     ] request ended " in line
    assert "outcome=stop" in line


@pytest.mark.usefixtures("root_logger")
def test_what_a_client_sent_begins_no_line_and_steers_no_terminal() -> None:
    formats: tuple[LogFormat, ...] = ("console", "json")
    for log_format in formats:
        out = io.StringIO()
        configure_logging("info", log_format, out)
        logger = logging.getLogger("elsewhere")
        logger.info("a\nb\x1b[2J\udc80", extra={"rid": "c\nd e", "odd": {1, 2}})
        (line,) = out.getvalue().splitlines()
        assert line.isascii()
        assert line.isprintable()


@pytest.mark.usefixtures("root_logger")
@pytest.mark.parametrize("log_format", ["console", "json"])
def test_an_exception_comes_with_its_traceback(log_format: LogFormat) -> None:
    out = io.StringIO()
    configure_logging("info", log_format, out)
    try:
        int("no number")
    except ValueError:
        logging.getLogger("elsewhere").exception("it failed")
    assert "ValueError: invalid literal" in out.getvalue()
    if log_format == "json":
        line = json.loads(out.getvalue())
        assert (line["event"], line["level"]) == ("it failed", "error")
        assert line["exception"].startswith("Traceback")


@pytest.mark.parametrize(
    "header",
    [None, "", "nonsense", TRACE[:-1], "00" + TRACE[2:35] + "-" + "0" * 16 + "-01", TRACE.upper()],
)
def test_a_traceparent_that_is_not_well_formed_is_ignored(header: str | None) -> None:
    assert trace_of(header) == ""


def test_a_traceparent_gives_its_trace_id() -> None:
    assert trace_of(f" {TRACE} ") == TRACE
    assert trace_id_of(TRACE) == "4bf92f3577b34da6a3ce929d0e0e4736"
