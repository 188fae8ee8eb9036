"""Who is served when, on real processes; and that nobody's answer depends on it.

That a request too many gets a 503 at once, streamed or not, and is counted: test_workers.py. That
memory does not grow with requests: test_resources.py.
"""

import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from tests.e2e.raw import Json, Raw, at_once, call, generate, load, settled
from tests.e2e.serving import Served, serving, until

from roost.sched.policies import MAX_WAIT_S

CHUNK = 64
# One thread: two would wait for each other wherever other tests run beside this one.
FLAGS = ("--threads", "1", "--max-running-requests", "4", "--max-step-tokens", str(CHUNK))
LONG = list(range(2_000, 2_000 + 20 * CHUNK))


@pytest.fixture(scope="module")
def four(demo_model: Path) -> Iterator[Served]:
    """Four HTTP workers, small steps, and a cache for few."""
    with serving(demo_model, *FLAGS, "--http-workers", "4", "--max-total-tokens", "1536") as served:
        served.wait_ready()
        yield served


@pytest.fixture(scope="module")
def plain(demo_model: Path) -> Iterator[Served]:
    """One HTTP worker, and nothing that is kept or cut."""
    with serving(demo_model, "--threads", "2", "--prefix-cache", "off") as served:
        served.wait_ready()
        yield served


def asking(number: int) -> dict[str, Json]:
    """Greedy and drawn, with penalties and logprobs, behind a beginning that half of them share."""
    shared = "Once upon a time there was a boat that went out to sea. " * 2
    sampling = {
        "max_new_tokens": 12 + number,
        "ignore_eos": True,
        "temperature": (0, 0.8)[number % 2],
        "top_p": 0.9,
        "frequency_penalty": (0, 0.5)[number % 3 == 0],
        "seed": number,
    }
    return {
        "text": (shared if number % 2 else "") + f"Chapter {number}.",
        "sampling_params": sampling,
        "return_logprob": True,
        "logprob_start_len": (0, -1)[number % 4 == 3],
        "top_logprobs_num": 2,
    }


def answered(served: Served, body: dict[str, Json], *, stream: bool) -> dict[str, Json]:
    """What must not depend on anything but the request."""
    with Raw(served, "/generate", body | {"stream": stream}) as raw:
        assert raw.status == 200, raw.json()
        whole = json.loads(list(raw.frames())[-2]) if stream else raw.json()
    meta = whole["meta_info"]
    names = ("input_token_logprobs", "output_token_logprobs", "output_top_logprobs", "seed")
    kept = {name: meta.get(name) for name in (*names, "finish_reason", "completion_tokens")}
    return {"text": whole["text"], "output_ids": whole["output_ids"], **kept}


def test_the_same_request_has_the_same_answer_at_any_worker_streamed_or_not(
    plain: Served, four: Served
) -> None:
    alone = [answered(plain, asking(i), stream=False) for i in range(8)]
    assert [len(one["output_ids"]) for one in alone] == list(range(12, 20))
    assert answered(plain, asking(3), stream=True) == alone[3]

    def again(number: int) -> dict[str, Json]:
        return answered(four, asking(number % 8), stream=number >= 8)

    assert at_once(again, range(16)) == alone * 2


class Watched:
    """A stream, and when each of its tokens came."""

    def __init__(self, served: Served, body: dict[str, Json]) -> None:
        self.came_s: list[float] = []
        self._thread = threading.Thread(target=self._read, args=(served, body))
        self._thread.start()

    def _read(self, served: Served, body: dict[str, Json]) -> None:
        with Raw(served, "/generate", body | {"stream": True}) as raw:
            for frame in raw.frames():
                if frame != "[DONE]":
                    self.came_s.append(time.monotonic())

    def join(self) -> None:
        self._thread.join(60)
        assert not self._thread.is_alive()

    def longest_gap_s(self, start_s: float, end_s: float) -> float:
        inside = [at_s for at_s in self.came_s if start_s < at_s < end_s]
        pairs = zip([start_s, *inside], [*inside, end_s], strict=True)
        return max(end - start for start, end in pairs)


def ids_asking(ids: list[int], num_tokens: int) -> dict[str, Json]:
    sampling: dict[str, Json] = {"max_new_tokens": num_tokens, "ignore_eos": True, "temperature": 0}
    return {"input_ids": ids, "sampling_params": sampling}


def test_a_long_prompt_holds_no_stream_up(four: Served) -> None:
    call(four, "/flush_cache")
    streams = [Watched(four, ids_asking([i], 100)) for i in (1_000, 1_001)]
    until(lambda: all(len(one.came_s) > 3 for one in streams))
    start_s = time.monotonic()
    status, _ = call(four, "/generate", ids_asking(LONG, 1))
    end_s = time.monotonic()
    assert status == 200
    for stream in streams:
        stream.join()
        # A token for each chunk of the prompt, while there are tokens left to come.
        came = sum(start_s < at_s < end_s for at_s in stream.came_s)
        assert came >= len(LONG) // CHUNK - 4
        # The steps are alike, so no gap is most of the time that the prompt took.
        assert stream.longest_gap_s(start_s, end_s) < (end_s - start_s) / 3


def test_a_cold_request_is_served_under_hot_traffic(four: Served) -> None:
    hot = list(range(5_000, 5_200))
    is_served = threading.Event()
    finished: list[float] = []

    def go_on(number: int) -> None:
        turn = 0
        while not is_served.is_set():
            turn += 1
            status, _ = call(four, "/generate", ids_asking([*hot, 1_000 + number, turn], 4))
            assert status == 200
            finished.append(time.monotonic())

    threads = [threading.Thread(target=go_on, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    try:
        until(lambda: len(finished) > 8)
        sent_s = time.monotonic()
        assert call(four, "/generate", ids_asking(list(range(9_000, 9_300)), 4))[0] == 200
        served_s = time.monotonic()
    finally:
        is_served.set()
        for thread in threads:
            thread.join()
    # Those whose beginning is known go before it until it has waited for so long; then few do.
    late_s = sent_s + MAX_WAIT_S
    assert sum(late_s < at_s < served_s for at_s in finished) <= 40


def test_it_is_as_quick_after_retractions_as_before(four: Served, demo_model: Path) -> None:
    # More than an answer is expected to grow when it is let in.
    bodies = [ids_asking([1_000 + i, *range(2_000, 2_030)], 200) for i in range(4)]
    unloaded = [answer["output_ids"] for answer in at_once(lambda b: ask(four, b), bodies)]

    def best_s(served: Served) -> float:
        return min(timed(lambda: generate(served, "The sea", 16)) for _ in range(3))

    # Without drafts all grow alike, so that the pool is too small for them at some time.
    few = ("--max-total-tokens", "640", "--speculate", "off")
    with serving(demo_model, *FLAGS, *few) as served:
        served.wait_ready()
        before_s = best_s(served)
        answers = at_once(lambda body: ask(served, body), bodies)
        assert [answer["output_ids"] for answer in answers] == unloaded
        num_retractions = sum(answer["meta_info"]["num_retractions"] for answer in answers)
        assert num_retractions > 0
        assert served.metric("roost_retractions_total") == num_retractions
        assert best_s(served) < 5 * before_s + 0.05


def ask(served: Served, body: dict[str, Json]) -> Json:
    status, answer = call(served, "/generate", body)
    assert status == 200, answer
    return answer


def timed(do: Callable[[], object]) -> float:
    start_s = time.monotonic()
    do()
    return time.monotonic() - start_s


def test_an_idle_server_shows_nothing_that_runs_or_waits(four: Served) -> None:
    at_once(lambda number: generate(four, f"{number} boats", 6), range(12))
    figures = settled(four)
    for name in ("num_reqs", "num_running_reqs", "num_waiting_reqs", "num_used_tokens"):
        assert figures[name] == 0
    for name in ("running_requests", "waiting_requests", "kv_used_tokens"):
        assert four.metric(f"roost_engine_{name}") == 0
    assert four.metric("roost_requests_in_flight") == 0
    num_steps = load(four)["num_steps"]
    time.sleep(0.7)
    assert load(four)["num_steps"] == num_steps


def test_one_that_is_too_long_leaves_no_work_behind(four: Served) -> None:
    for ids in ([5] * 1_537, [5] * 100_000):
        status, answer = call(four, "/generate", ids_asking(ids, 1))
        assert status == 400, answer
    settled(four)
    family = [psutil.Process(four.process.pid), *four.children()]
    began = sum(sum(process.cpu_times()[:2]) for process in family)
    time.sleep(1)
    used = sum(sum(process.cpu_times()[:2]) for process in family) - began
    assert used <= 0.05
