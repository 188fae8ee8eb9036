"""What a server and a library take of the machine: nothing while idle, no more with time."""

import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import psutil
from tests.e2e.serving import Served, serving, until

_MIB = 1 << 20

LIBRARY = """
import gc, sys, threading, time
import psutil
from roost import Engine, SamplingParams

me = psutil.Process()
few = SamplingParams(max_new_tokens=4)

def cycle():
    with Engine(sys.argv[1], max_total_tokens=2048) as engine:
        engine.generate(["The sea", "In 1969"], few)
        for _ in engine.stream("Once", few):
            pass
    assert threading.active_count() == 1, threading.enumerate()
    gc.collect()
    return me.memory_info().rss

cycle()
first = cycle()
for _ in range(3):
    last = cycle()
with Engine(sys.argv[1], max_total_tokens=2048) as engine:
    engine.generate("The sea", few)
    before = sum(me.cpu_times()[:2])
    time.sleep(3)
    used = sum(me.cpu_times()[:2]) - before
print(last - first, used)
"""


def test_a_library_gives_back_all_it_took_and_idles_without_work(demo_model: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LIBRARY, str(demo_model)],
        check=True,
        capture_output=True,
        text=True,
        timeout=120,
    )
    grown, used_s = done.stdout.split()
    # One model's weights are 80 MiB; where huge pages fall moves a few.
    assert int(grown) < 16 * _MIB
    assert float(used_s) <= 0.03


def test_a_server_idles_without_work_and_grows_with_no_request(demo_model: Path) -> None:
    # What is cached fills the memory that it may have: little, so that the first requests do.
    flags = ("--log-level", "warning", "--max-total-tokens", "2048")
    with serving(demo_model, *flags) as served:
        served.wait_ready()
        family = [psutil.Process(served.process.pid), *served.children()]
        ask_everything(served, range(300))
        before = [process.memory_info().rss for process in family]
        ask_everything(served, range(300, 1000))
        after = [process.memory_info().rss for process in family]
        grown = [(a - b) / _MIB for a, b in zip(after, before, strict=True)]
        assert max(grown) < 3, f"MiB of supervisor, engine, HTTP worker: {grown}"
        began = [sum(process.cpu_times()[:2]) for process in family]
        time.sleep(3)
        used = [sum(p.cpu_times()[:2]) - b for p, b in zip(family, began, strict=True)]
        assert sum(used) <= 0.03, used


def ask_everything(served: Served, numbers: range) -> None:
    """One request for each number: of every kind, answered, refused and left."""
    kinds = (whole, streamed, listed, native, whole, left, whole, refused, streamed, unknown)
    with httpx.Client(base_url=served.url, timeout=60) as client:

        def ask(number: int) -> None:
            kinds[number % len(kinds)](client, number)

        with ThreadPoolExecutor(16) as pool:
            list(pool.map(ask, numbers))
    until(lambda: served.metric("roost_requests_in_flight") == 0)
    until(lambda: served.metric("roost_engine_running_requests") == 0)


def whole(client: httpx.Client, number: int) -> None:
    body = {"prompt": f"{number} words", "max_tokens": 3, "logprobs": 2, "seed": number}
    assert client.post("/v1/completions", json=body).status_code == 200


def listed(client: httpx.Client, number: int) -> None:
    body = {"prompt": ["One", "Two", f"{number}"], "max_tokens": 1}
    assert len(client.post("/v1/completions", json=body).json()["choices"]) == 3


def native(client: httpx.Client, number: int) -> None:
    body = {"text": f"{number}", "rid": f"r{number}", "sampling_params": {"max_new_tokens": 3}}
    assert client.post("/generate", json=body).json()["meta_info"]["id"] == f"r{number}"


def streamed(client: httpx.Client, number: int) -> None:
    messages = [{"role": "user", "content": f"Say {number}."}]
    body = {"messages": messages, "max_tokens": 3, "stream": True, "stop": ["!"]}
    with client.stream("POST", "/v1/chat/completions", json=body) as answer:
        assert answer.read().endswith(b"data: [DONE]\n\n")


def left(client: httpx.Client, number: int) -> None:
    body = {"prompt": f"{number}", "max_tokens": 500, "ignore_eos": True, "stream": True}
    with client.stream("POST", "/v1/completions", json=body) as answer:
        assert next(answer.iter_lines())


def refused(client: httpx.Client, number: int) -> None:
    body = {"prompt": [number, -1], "max_tokens": 3, "stream": number % 2 == 0}
    assert client.post("/v1/completions", json=body).status_code == 400


def unknown(client: httpx.Client, number: int) -> None:
    assert client.get(f"/nowhere/{number}").status_code == 404
