"""What the prefix cache and the scheduler are worth: roost, roost without its cache, others.

    python -m bench.prefix [--llama-server PATH] [--peer LABEL=COMMAND] [--rounds 3]
        [--scenarios shared chat long …]

As in `bench/serve.py` the servers take turns, each is started afresh for each turn, and what counts
is the ratio within one run.

- `shared`: 32 requests at once, 1,024 prompt tokens in common and 32 of their own, 64 new ones;
  cold, then again with other tokens of their own (`warm`). New tokens a second.
- `chat`: 16 conversations at once, of 8 turns: about 40 tokens more from the user, 16 from the
  model. New tokens a second.
- `long`: 8 streams run, and a prompt of 7,000 tokens comes. The longest time between two tokens of
  a stream meanwhile, and the time to the first token of the prompt.
- `overload`: 200 requests of 16 + 144 tokens at once, where the cache holds 20 of them. New tokens
  a second of the second and of the last quarter; how many retractions; whether 10 of the answers
  are those of an unloaded server. Only of roost: the others divide their memory beforehand.

Beside a cache's hits stands what an oracle would have hit: every token that was computed before, or
is being computed for somebody who came first.
"""

import argparse
import asyncio
import itertools
import json
import random
import signal
import statistics
import sys
import time
import urllib.request
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from bench.contestants import REST_S, Contestant, add_options, chosen, launched, peers, roost
from bench.load import Answer, ask, request

_COMMON, _OWN, _NEW = 1_024, 32, 64
_LONG_TOKENS = 7_000
_POOL_TOKENS = 20 * 160
_WORDS = ("sea", "boat", "wind", "sail", "storm", "light", "map", "anchor", "rope", "gull", "tide")

Figures = dict[str, float]


@dataclass(frozen=True)
class Server:
    """One that runs: its port, and the name of its model."""

    port: int
    model: str

    async def ask(self, prompt: list[int] | str, new_tokens: int) -> Answer:
        """Raises ServerError."""
        answer = await ask(self.port, request(self.model, [], new_tokens) | {"prompt": prompt})
        answer.settle()
        return answer

    def flush(self) -> None:
        """Of roost's: what it keeps is forgotten."""
        url = f"http://127.0.0.1:{self.port}/flush_cache"
        with urllib.request.urlopen(url, data=b"") as answer:
            answer.read()

    def metric(self, name: str) -> float:
        """Of roost's: one sample of /metrics."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics") as page:
            lines = page.read().decode().splitlines()
        (line,) = (one for one in lines if one.startswith(name + " "))
        return float(line.split()[-1])


def num_cached(answer: Answer) -> int:
    """Prompt tokens that the server says it had."""
    for event in reversed(answer.events):
        usage = json.loads(event).get("usage")
        if usage:
            details = usage.get("prompt_tokens_details") or {}
            return int(details.get("cached_tokens") or 0)
    return 0


def text_of(answer: Answer) -> str:
    chunks = (json.loads(event)["choices"] for event in answer.events)
    return "".join(choices[0]["text"] for choices in chunks if choices)


def ids(drawn: random.Random, count: int) -> list[int]:
    return [drawn.randrange(1_000, 40_000) for _ in range(count)]


def speed(answers: list[Answer], start_s: float) -> float:
    """New tokens a second, from the first request to the last token."""
    return sum(a.new_tokens for a in answers) / (max(a.last_s for a in answers) - start_s)


async def shared(server: Server, seed: int) -> Figures:
    drawn = random.Random(seed)
    common = ids(drawn, _COMMON)
    figures: Figures = {}
    for name, num_known in (("cold", 31), ("warm", 32)):
        prompts = [common + ids(drawn, _OWN) for _ in range(32)]
        start_s = time.perf_counter()
        answers = await asyncio.gather(*(server.ask(prompt, _NEW) for prompt in prompts))
        figures[f"{name} tok/s"] = speed(answers, start_s)
        figures[f"{name} hits/oracle"] = sum(map(num_cached, answers)) / (num_known * _COMMON)
    return figures


async def chat(server: Server, seed: int) -> Figures:
    num_known = 0

    async def converse(number: int) -> list[Answer]:
        nonlocal num_known
        drawn = random.Random(f"{seed} {number}")
        text, answers, before = "", [], 0
        for _ in range(8):
            words = " ".join(drawn.choice(_WORDS) for _ in range(36))
            text += f"\nUser {drawn.randrange(1_000)}: {words}.\nSailor:"
            answer = await server.ask(text, 16)
            num_known += before
            # The last token of an answer is never computed.
            before = answer.prompt_tokens + answer.new_tokens - 1
            text += text_of(answer)
            answers.append(answer)
        return answers

    start_s = time.perf_counter()
    talks = await asyncio.gather(*(converse(number) for number in range(16)))
    answers = [answer for talk in talks for answer in talk]
    return {
        "tok/s": speed(answers, start_s),
        "hits/oracle": sum(map(num_cached, answers)) / num_known,
    }


async def long(server: Server, seed: int) -> Figures:
    drawn = random.Random(seed)
    prompts = [ids(drawn, 64) for _ in range(8)]
    streams = [asyncio.create_task(server.ask(prompt, 256)) for prompt in prompts]
    await asyncio.sleep(1.5)
    prompt = await server.ask(ids(drawn, _LONG_TOKENS), 1)
    answers = await asyncio.gather(*streams)

    def longest_gap_s(answer: Answer) -> float:
        pairs = itertools.pairwise(answer.times_s)
        return max(b - a for a, b in pairs if b > prompt.sent_s and a < prompt.last_s)

    return {
        "longest gap ms": 1e3 * max(longest_gap_s(answer) for answer in answers),
        "first token of 7,000 s": prompt.first_s - prompt.sent_s,
    }


async def overload(server: Server, seed: int) -> Figures:
    drawn = random.Random(seed)
    prompts = [ids(drawn, 16) for _ in range(200)]
    answers = await asyncio.gather(*(server.ask(prompt, 144) for prompt in prompts))
    times_s = sorted(at_s for answer in answers for at_s in answer.times_s)
    first, second, third, last = (times_s[len(times_s) * i // 4 - 1] for i in (1, 2, 3, 4))
    num_retractions = server.metric("roost_retractions_total")
    server.flush()
    num_same = 0
    for i in range(0, 200, 20):
        num_same += text_of(await server.ask(prompts[i], 144)) == text_of(answers[i])
    return {
        "2nd quarter tok/s": len(times_s) / 4 / (second - first),
        "last quarter tok/s": len(times_s) / 4 / (last - third),
        "retractions": num_retractions,
        "same of 10": num_same,
    }


Scenario = Callable[[Server, int], Awaitable[Figures]]
SCENARIOS: dict[str, tuple[Scenario, int]] = {
    "shared": (shared, 32),
    "chat": (chat, 16),
    "long": (long, 9),
    "overload": (overload, 64),
}


def contestants_for(scenario: str, options: argparse.Namespace) -> list[Contestant]:
    quiet = ("--log-level", "warning")
    if scenario == "overload":
        return [roost(options, *quiet, "--max-total-tokens", str(_POOL_TOKENS))]
    found = [
        roost(options, *quiet),
        roost(options, *quiet, "--prefix-cache", "off", label="roost, no cache"),
        # One pool for all slots, as the long prompt needs more than its share.
        *peers(options, "-kvu", "--cache-reuse", "64"),
    ]
    # Without a cache, nothing is otherwise for prompts that have nothing in common.
    return [
        one
        for one in chosen(found, options)
        if scenario != "long" or one.label != "roost, no cache"
    ]


def take_turn(contestant: Contestant, scenario: str, seed: int) -> Figures:
    play, streams = SCENARIOS[scenario]

    async def made(name: str) -> Figures:
        return await play(Server(contestant.port, name), seed)

    with launched(contestant, streams) as server:
        return asyncio.run(made(server.model))


def compete(options: argparse.Namespace) -> dict[tuple[str, str], list[Figures]]:
    """(scenario, server) → the figures of its rounds."""
    found: dict[tuple[str, str], list[Figures]] = {}
    for round_number in range(options.rounds):
        for scenario in options.scenarios:
            for contestant in contestants_for(scenario, options):
                figures = take_turn(contestant, scenario, round_number)
                found.setdefault((scenario, contestant.label), []).append(figures)
                shown = "  ".join(f"{name} {value:,.2f}" for name, value in figures.items())
                print(f"{round_number + 1}  {scenario:9} {contestant.label:16} {shown}", flush=True)
                time.sleep(REST_S)
    return found


def table(found: dict[tuple[str, str], list[Figures]]) -> str:
    """Medians over the rounds, and roost's as a multiple of the others'."""
    lines = []
    for (scenario, label), rounds in found.items():
        for name in rounds[0]:
            value = statistics.median(figures[name] for figures in rounds)
            ours = statistics.median(figures[name] for figures in found[scenario, "roost"])
            ratio = "" if label == "roost" or not value else f"  roost × {ours / value:.2f}"
            lines.append(f"{scenario:9} {name:24} {label:16} {value:10,.2f}{ratio}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description="What the prefix cache and scheduler are worth.")
    parser.add_argument("--scenarios", nargs="+", choices=SCENARIOS, default=list(SCENARIOS))
    parser.add_argument("--rounds", type=int, default=3)
    add_options(parser, port=8_120)
    options = parser.parse_args()
    # An ending by a signal must still stop the server that has its turn.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))
    found = compete(options)
    print()
    print(table(found))


if __name__ == "__main__":
    main()
