"""A bounded load on an OpenAI-compatible server on this machine, and what it answers with.

    python -m bench.load single batch16 --port 8000 [--rounds 3] [--out results.jsonl]

One round of a scenario is made so:

- `single`: 3 requests one after another, 128 prompt tokens, 128 new ones. `tokens_per_s` is the
  decode speed of one stream, (new tokens - 1) / (last event - first event), the median of the 3.
- `prefill512`, `prefill2048`: 3 requests one after another, one new token each. `tokens_per_s` is
  prompt tokens / time to that token, the median.
- `batch16`, `batch64`: so many requests at once, 256 prompt tokens, 128 new ones each.
  `tokens_per_s` is all new tokens / time from the first request to the last answer.
- `shared`: 32 requests at once, 1,024 prompt tokens in common, 32 of their own, 64 new ones.
  `shared_warm` is the same again after it: the same common tokens, others of their own.
- `tiny`: 256 requests, 32 in flight, 8 prompt tokens and one new one: here requests a second.

Prompts are arrays of random token ids, another draw for each round, so that no cache of an earlier
round helps. Lengths are forced with `ignore_eos` and `min_tokens`; new tokens are counted by the
server's own `usage`. `ttft_s` is the mean time to the first event, `itl_s` the mean of (last event
- first event) / (new tokens - 1); `itl_median_s` and `itl_p99_s` are over all times between two
events of a stream, whatever happened in them (a prompt of somebody else's, too). The client is a
plain socket with almost no work an event: it runs on the cores that the server needs. It connects
to the loopback address only.
"""

import argparse
import asyncio
import itertools
import json
import math
import random
import statistics
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

_HOST = "127.0.0.1"
_REQUEST_TIME_LIMIT_S = 900.0
# Ordinary words in every vocabulary that is measured: no control tokens, no bytes.
_FIRST_ID, _LAST_ID = 1_000, 40_000


@dataclass(frozen=True)
class Scenario:
    """The shape of one round of load."""

    name: str
    requests: int
    in_flight: int
    prompt_tokens: int
    new_tokens: int
    common_tokens: int = 0
    # The scenario whose common tokens these are; its own, if it is empty.
    common_from: str = ""


SCENARIOS = {
    scenario.name: scenario
    for scenario in (
        Scenario("single", 3, 1, 128, 128),
        Scenario("prefill512", 3, 1, 512, 1),
        Scenario("prefill2048", 3, 1, 2_048, 1),
        Scenario("batch16", 16, 16, 256, 128),
        Scenario("batch64", 64, 64, 256, 128),
        Scenario("shared", 32, 32, 32, 64, common_tokens=1_024),
        Scenario("shared_warm", 32, 32, 32, 64, common_tokens=1_024, common_from="shared"),
        Scenario("tiny", 256, 32, 8, 1),
    )
}


@dataclass
class Answer:
    """What came back for one request. Times are seconds of the monotonic clock."""

    sent_s: float
    events: list[bytes] = field(default_factory=list)
    times_s: list[float] = field(default_factory=list)
    first_s: float = 0.0
    last_s: float = 0.0
    prompt_tokens: int = 0
    new_tokens: int = 0

    def settle(self) -> None:
        """Read the counts out of the events: after the load, not during it."""
        for event in reversed(self.events):
            usage = json.loads(event).get("usage")
            if usage:
                self.prompt_tokens = usage["prompt_tokens"]
                self.new_tokens = usage["completion_tokens"]
                return
        raise ValueError("the server's stream ended without usage")

    @property
    def between_s(self) -> float:
        """Mean time between two new tokens."""
        return (self.last_s - self.first_s) / max(1, self.new_tokens - 1)


@dataclass(frozen=True)
class Figures:
    """The result of one round. `tokens_per_s` is requests a second for `tiny`."""

    scenario: str
    tokens_per_s: float
    ttft_s: float
    itl_s: float
    itl_median_s: float
    itl_p99_s: float
    new_tokens: int
    wall_s: float


class ServerError(Exception):
    """The server answered with an error, or broke off."""


async def ask(port: int, body: dict[str, object]) -> Answer:
    """POST `body` to `/v1/completions` as a stream; return when the stream has ended."""
    content = json.dumps(body).encode()
    head = (
        f"POST /v1/completions HTTP/1.1\r\nHost: {_HOST}:{port}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n"
        "Connection: close\r\n\r\n"
    )
    answer = Answer(sent_s=time.perf_counter())
    reader, writer = await asyncio.open_connection(_HOST, port)
    try:
        writer.write(head.encode() + content)
        status = await reader.readline()
        if b" 200 " not in status:
            raise ServerError(f"{status!r}: {(await reader.read())[-500:]!r}")
        # The chunk sizes of the transfer stand on lines of their own: only `data:` lines are ours.
        # (A line cut in two by a chunk would be misread; servers send whole events a chunk.)
        async for line in reader:
            if line.startswith(b"data: {"):
                # The closing event with the usage is no token; it must not stretch the time.
                if b'"choices":[]' not in line and b'"choices": []' not in line:
                    answer.last_s = time.perf_counter()
                    answer.first_s = answer.first_s or answer.last_s
                    answer.times_s.append(answer.last_s)
                answer.events.append(line[6:])
            elif line.startswith(b"data: [DONE]"):
                return answer
    finally:
        writer.close()
    raise ServerError("the stream broke off")


def prompts(scenario: Scenario, seed: int) -> list[list[int]]:
    """The round's prompts: no two scenarios begin alike, unless one says so of the other."""

    def ids(drawn: random.Random, count: int) -> list[int]:
        return [drawn.randrange(_FIRST_ID, _LAST_ID) for _ in range(count)]

    family = scenario.common_from or scenario.name
    common = ids(random.Random(f"common {family} {seed}"), scenario.common_tokens)
    own = random.Random(f"{scenario.name} {seed}")
    return [common + ids(own, scenario.prompt_tokens) for _ in range(scenario.requests)]


def percentile(values: list[float], percent: float) -> float:
    """The least value that so many percent of them do not exceed; 0 of none."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)] if ordered else 0.0


def request(model: str, prompt: list[int], new_tokens: int) -> dict[str, object]:
    """The body of one request."""
    return {
        "model": model,
        "prompt": prompt,
        "max_tokens": new_tokens,
        "min_tokens": new_tokens,
        "ignore_eos": True,
        "temperature": 0.0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


async def run_round(port: int, model: str, scenario: Scenario, seed: int) -> Figures:
    """Run one round of `scenario`.

    Raises ServerError when a request fails or answers with another number of tokens.
    """
    gate = asyncio.Semaphore(scenario.in_flight)

    async def one(prompt: list[int]) -> Answer:
        async with gate, asyncio.timeout(_REQUEST_TIME_LIMIT_S):
            return await ask(port, request(model, prompt, scenario.new_tokens))

    start_s = time.perf_counter()
    answers = await asyncio.gather(*(one(prompt) for prompt in prompts(scenario, seed)))
    wall_s = time.perf_counter() - start_s
    for answer in answers:
        answer.settle()
        if answer.new_tokens != scenario.new_tokens:
            raise ServerError(f"{answer.new_tokens} new tokens, not {scenario.new_tokens}")
    new_tokens = sum(answer.new_tokens for answer in answers)
    gaps_s = [b - a for answer in answers for a, b in itertools.pairwise(answer.times_s)]
    return Figures(
        scenario=scenario.name,
        tokens_per_s=_speed(scenario, answers, wall_s),
        ttft_s=statistics.fmean(answer.first_s - answer.sent_s for answer in answers),
        itl_s=statistics.fmean(answer.between_s for answer in answers),
        itl_median_s=percentile(gaps_s, 50),
        itl_p99_s=percentile(gaps_s, 99),
        new_tokens=new_tokens,
        wall_s=wall_s,
    )


def _speed(scenario: Scenario, answers: list[Answer], wall_s: float) -> float:
    """The scenario's figure (see the top)."""
    if scenario.name == "tiny":
        return len(answers) / wall_s
    if scenario.in_flight > 1:
        return sum(answer.new_tokens for answer in answers) / wall_s
    if scenario.new_tokens == 1:
        return statistics.median(
            answer.prompt_tokens / (answer.first_s - answer.sent_s) for answer in answers
        )
    return statistics.median(1 / answer.between_s for answer in answers)


async def model_name(port: int) -> str:
    """The first model that the server lists."""
    reader, writer = await asyncio.open_connection(_HOST, port)
    try:
        writer.write(
            f"GET /v1/models HTTP/1.1\r\nHost: {_HOST}\r\nConnection: close\r\n\r\n".encode()
        )
        answer = await reader.read()
    finally:
        writer.close()
    start, end = answer.find(b"{"), answer.rfind(b"}")
    name: str = json.loads(answer[start : end + 1])["data"][0]["id"]
    return name


async def _measure(options: argparse.Namespace) -> list[Figures]:
    model = await model_name(options.port)
    await ask(options.port, request(model, list(range(2_000, 2_064)), 16))
    found: list[Figures] = []
    for round_number in range(options.rounds):
        for name in options.scenarios:
            figures = await run_round(options.port, model, SCENARIOS[name], round_number)
            print(f"{name:12} {figures.tokens_per_s:9.1f}/s  first {figures.ttft_s * 1e3:8.1f} ms")
            found.append(figures)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description="Load a server on this machine.")
    parser.add_argument("scenarios", nargs="+", choices=SCENARIOS)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--out", type=Path, help="append the figures as JSON lines")
    options = parser.parse_args()
    found = asyncio.run(_measure(options))
    if options.out:
        with options.out.open("a") as out:
            out.writelines(json.dumps(asdict(figures)) + "\n" for figures in found)


if __name__ == "__main__":
    main()
