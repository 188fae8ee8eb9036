"""What is shown of requests follows from their events, by the table."""

import io
import json
import logging
import math
from collections.abc import Iterator

import pytest

from roost.core.events import Ended
from roost.core.outcome import OUTCOMES, Outcome
from roost.core.request import HEALTH_PREFIX, Envelope, Origin, RequestId
from roost.observe import EndingLog, LogFormat, configure_logging, set_log_level, trace_of
from roost.observe.trace import trace_id_of

TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


def envelope(rid: str = "r", trace: str = "") -> Envelope:
    return Envelope(RequestId(rid), Origin(0, 1), 1, 10.0, math.inf, 0, trace)


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


@pytest.mark.usefixtures("root_logger")
def test_the_level_can_be_changed_at_run_time() -> None:
    out = io.StringIO()
    configure_logging("info", "json", out)
    logger = logging.getLogger("elsewhere")
    for level in ("debug", "error", "warning"):
        set_log_level(level)
        for number in (logging.DEBUG, logging.WARNING, logging.ERROR):
            logger.log(number, level)
    seen = [(line["event"], line["level"]) for line in map(json.loads, out.getvalue().splitlines())]
    assert seen == [
        ("debug", "debug"),
        ("debug", "warning"),
        ("debug", "error"),
        ("error", "error"),
        ("warning", "warning"),
        ("warning", "error"),
    ]
