"""What /metrics says follows from the events of requests, whichever worker saw them."""

import math
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from roost.core.events import Accepted, Delta, Ended, Started, Usage
from roost.core.outcome import OUTCOMES, Outcome
from roost.core.request import HEALTH_PREFIX, Envelope, Origin, RequestId
from roost.observe import EngineFigures, Meter, worker_has_ended


def envelope(rid: str = "r") -> Envelope:
    return Envelope(RequestId(rid), Origin(0, 1), 1, 10.0, math.inf, 0, "")


def samples(said: Meter | str) -> dict[str, float]:
    """name{label values} → value; without the times at which counters were made."""
    text = said if isinstance(said, str) else said.exposition().decode()
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        if family.name.endswith("_created"):
            continue
        for sample in family.samples:
            labels = ",".join(sample.labels.values())
            found[sample.name + (f"{{{labels}}}" if labels else "")] = sample.value
    return found


def finish(meter: Meter, rid: str) -> None:
    meter.opened(envelope(rid))
    meter.see(envelope(rid), Delta(0, (1, 2)), 11.0)
    meter.see(envelope(rid), Ended(Outcome.LENGTH, Usage(3, 2)), 12.0)


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
        (Delta(0, (1,)), 10.5),
        (Delta(1, (2, 3)), 10.7),
        (Delta(3, ()), 10.9),
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


def test_a_refusal_that_is_our_fault_is_counted_as_one() -> None:
    meter = Meter()
    meter.refused(envelope(), Ended(Outcome.ENGINE_FAULT))
    meter.refused(envelope("b"), Ended(Outcome.QUEUE_FULL))
    found = samples(meter)
    assert found["roost_server_faults_total"] == 1
    assert found["roost_requests_total{engine_fault}"] == 1
    assert found["roost_requests_total{queue_full}"] == 1


def test_a_health_check_is_no_traffic() -> None:
    meter = Meter()
    check = envelope(f"{HEALTH_PREFIX}_1")
    before = samples(meter)
    meter.opened(check)
    meter.see(check, Delta(0, (1,)), 11.0)
    meter.see(check, Ended(Outcome.LENGTH), 11.0)
    meter.refused(check, Ended(Outcome.QUEUE_FULL))
    assert samples(meter) == before


def test_the_engine_is_shown_as_it_was_heard() -> None:
    meter = Meter()
    figures = EngineFigures(is_alive=True, num_running=3, num_waiting=4, num_kv_tokens=99)
    meter.engine(replace(figures, num_gone=1, num_undelivered=5))
    found = samples(meter)
    assert found["roost_engine_up"] == 1
    assert found["roost_engine_gone_workers"] == 1
    assert found["roost_engine_undelivered_outputs"] == 5
    assert found["roost_engine_running_requests"] == 3
    assert found["roost_engine_waiting_requests"] == 4
    assert found["roost_engine_kv_tokens"] == 99


def test_every_series_is_there_from_the_start_and_of_the_right_type() -> None:
    families = {
        family.name: family.type
        for family in text_string_to_metric_families(Meter().exposition().decode())
        if not family.name.endswith("_created")
    }
    assert families == {
        "roost_requests": "counter",
        "roost_server_faults": "counter",
        "roost_requests_in_flight": "gauge",
        "roost_prompt_tokens": "counter",
        "roost_generation_tokens": "counter",
        "roost_cached_tokens": "counter",
        "roost_retractions": "counter",
        "roost_late_outputs": "counter",
        "roost_protocol_violations": "counter",
        "roost_malformed_messages": "counter",
        "roost_time_to_first_token_seconds": "histogram",
        "roost_inter_token_latency_seconds": "histogram",
        "roost_request_latency_seconds": "histogram",
        "roost_queue_time_seconds": "histogram",
        "roost_engine_up": "gauge",
        "roost_engine_running_requests": "gauge",
        "roost_engine_waiting_requests": "gauge",
        "roost_engine_kv_used_tokens": "gauge",
        "roost_engine_disk_kv_read_tokens": "gauge",
        "roost_engine_disk_kv_tokens": "gauge",
        "roost_engine_kv_cached_tokens": "gauge",
        "roost_engine_kv_tokens": "gauge",
        "roost_engine_steps": "gauge",
        "roost_engine_draft_tokens": "gauge",
        "roost_engine_right_draft_tokens": "gauge",
        "roost_engine_gone_workers": "gauge",
        "roost_engine_undelivered_outputs": "gauge",
    }
    found = samples(Meter())
    assert set(found.values()) == {0}
    for cause in ("client", "health", "ours", "unknown"):
        assert f"roost_late_outputs_total{{{cause}}}" in found


def test_a_value_on_a_bound_is_in_the_bucket_of_that_bound_and_buckets_add_up() -> None:
    meter = Meter()
    for rid, now_s in (("a", 10.25), ("b", 10.26), ("c", 900.0)):
        meter.opened(envelope(rid))
        meter.see(envelope(rid), Delta(0, (1,)), now_s)
    found = samples(meter)
    name = "roost_time_to_first_token_seconds_bucket"
    assert [found[f"{name}{{{bound}}}"] for bound in ("0.1", "0.25", "0.5", "300.0", "+Inf")] == [
        0,
        1,
        2,
        2,
        3,
    ]
    assert found["roost_time_to_first_token_seconds_count"] == 3


def test_late_outputs_and_violations_are_counted_by_cause() -> None:
    meter = Meter()
    for cause in ("client", "unknown", "client"):
        meter.late(cause)
    meter.violation()
    found = samples(meter)
    assert found["roost_late_outputs_total{client}"] == 2
    assert found["roost_late_outputs_total{unknown}"] == 1
    assert found["roost_late_outputs_total{ours}"] == 0
    assert found["roost_protocol_violations_total"] == 1


WORKER = """
import os, signal, sys
from pathlib import Path
from tests.unit.observe.test_metrics import envelope, finish
from roost.observe import EngineFigures, Meter, share_counts

directory, worker, num_finished, num_open, num_malformed = sys.argv[1], *map(int, sys.argv[2:])
share_counts(worker)
meter = Meter(Path(directory))
for number in range(num_finished):
    finish(meter, f"r{number}")
for number in range(num_open):
    meter.opened(envelope(f"open{number}"))
meter.engine(EngineFigures(is_alive=True, num_malformed=num_malformed))
sys.stdout.buffer.write(meter.exposition())
sys.stdout.flush()
os.kill(os.getpid(), signal.SIGKILL)
"""


def killed_worker(directory: Path, *numbers: int) -> dict[str, float]:
    """What a worker said last. numbers: which it was, requests that it finished, requests that it
    left, messages that it could not read.
    """
    variables = {"PYTHONPATH": str(Path.cwd()), "PROMETHEUS_MULTIPROC_DIR": str(directory)}
    done = subprocess.run(
        [sys.executable, "-c", WORKER, str(directory), *map(str, numbers)],
        check=False,
        capture_output=True,
        text=True,
        env=os.environ | variables,
    )
    assert (done.returncode, done.stderr) == (-signal.SIGKILL, "")
    return samples(done.stdout)


def test_each_worker_says_the_sum_over_all_of_them_and_dead_ones_keep_what_they_counted(
    tmp_path: Path,
) -> None:
    killed_worker(tmp_path, 0, 20, 2, 1)
    killed_worker(tmp_path, 1, 13, 3, 0)
    # The next life of one of them, while what the other had at hand is not cleared yet.
    found = killed_worker(tmp_path, 0, 7, 1, 1)
    assert found["roost_requests_total{length}"] == 40
    assert found["roost_requests_total{stop}"] == 0
    assert found["roost_generation_tokens_total"] == 80
    assert found["roost_request_latency_seconds_count"] == 40
    assert found["roost_request_latency_seconds_sum"] == 80
    assert found["roost_requests_in_flight"] == 4
    assert found["roost_malformed_messages_total"] == 2
    # What each hears of the one engine is no sum.
    assert found["roost_engine_up"] == 1
    worker_has_ended(tmp_path, 0)
    worker_has_ended(tmp_path, 1)
    found = killed_worker(tmp_path, 2, 0, 0, 0)
    assert found["roost_requests_total{length}"] == 40
    assert found["roost_requests_in_flight"] == 0
    # However many lives there were: three files a worker.
    assert len(list(tmp_path.iterdir())) == 9


def test_what_is_shared_has_the_same_series_as_what_is_not(tmp_path: Path) -> None:
    assert killed_worker(tmp_path, 0, 0, 0, 0).keys() == samples(Meter()).keys()


def test_the_counts_of_two_libraries_in_one_process_are_their_own() -> None:
    first, second = Meter(), Meter()
    finish(first, "r")
    assert samples(first)["roost_requests_total{length}"] == 1
    assert samples(second)["roost_requests_total{length}"] == 0
