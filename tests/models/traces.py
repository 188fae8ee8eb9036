"""Random requests, and random runs of an engine under them. A number says all about each."""

import random
from dataclasses import dataclass
from typing import Literal

import msgspec
from tests.models.bits import Bench, Judge
from tests.sim.requests import request, sampling

from roost.core.params import Sampling
from roost.core.request import GenerateRequest, LogprobsWanted, RequestId

POOL_SIZE = 27
# Prompt and answer of every request together fit into so many tokens.
MOST_TOKENS = 112
_MOST_PROMPT_TOKENS = 96
_MOST_NEW_TOKENS = 16
# Of everything, in one run: one that runs without a cache gets on by little between two of them.
_MOST_RETRACTS = 8
# Ordinary words of the demo model, and of most others.
_FIRST_ID, _LAST_ID = 1_000, 30_000


def pool_of(seed: int) -> list[GenerateRequest]:
    """Prompts that have beginnings of every length in common, parameters of every kind."""
    drawn = random.Random(f"pool {seed}")
    stems = [_ids(drawn, _MOST_PROMPT_TOKENS) for _ in range(3)]
    return [
        request(
            f"p{i}",
            _prompt(drawn, stems),
            _sampling(drawn, list(_KINDS)[i % len(_KINDS)]),
            logprobs=_wanted(drawn),
        )
        for i in range(POOL_SIZE)
    ]


def _ids(drawn: random.Random, count: int) -> tuple[int, ...]:
    return tuple(drawn.randrange(_FIRST_ID, _LAST_ID) for _ in range(count))


def _prompt(drawn: random.Random, stems: list[tuple[int, ...]]) -> tuple[int, ...]:
    match drawn.randrange(4):
        case 0:  # of its own, and short
            return _ids(drawn, drawn.randint(1, 40))
        case 1:  # one phrase again and again, so that an answer is easily guessed
            phrase = _ids(drawn, drawn.randint(1, 9))
            return (phrase * 64)[: drawn.randint(20, 64)]
        case _:
            stem = drawn.choice(stems)
            kept = drawn.randint(1, len(stem))
            return (stem[:kept] + _ids(drawn, drawn.randint(0, 12)))[:_MOST_PROMPT_TOKENS]


Kind = Literal["greedy", "drawn", "cut", "penal", "tail", "biased", "held", "ends", "none"]
_KINDS: dict[Kind, dict[str, object]] = {
    "greedy": {"temperature": 0.0},
    "drawn": {"temperature": 0.8},
    "cut": {"temperature": 1.1, "top_p": 0.9, "top_k": 50},
    "penal": {
        "temperature": 0.7,
        "repetition_penalty": 1.3,
        "frequency_penalty": 0.5,
        "presence_penalty": 0.25,
    },
    "tail": {"min_p": 0.02},
    "biased": {"temperature": 0.9, "logit_bias": ((1_500, 6.0), (28, -100.0))},
    "held": {"temperature": 0.0, "repetition_penalty": 1.1, "min_new_tokens": 9},
    "ends": {"temperature": 0.0, "stops": (b" the", b"\n"), "stop_regexes": ("[0-9]{2}",)},
    "none": {"max_new_tokens": 0},
}


def _sampling(drawn: random.Random, kind: Kind) -> Sampling:
    plain = sampling(drawn.randint(8, _MOST_NEW_TOKENS), seed=drawn.randrange(1 << 64))
    changed: dict[str, object] = dict(_KINDS[kind])
    if kind == "held":  # ids that greedy decoding would often choose
        changed["stop_ids"] = (*range(28, 40), 198, 2)
    return msgspec.structs.replace(plain, **changed)


def _wanted(drawn: random.Random) -> LogprobsWanted:
    return LogprobsWanted(
        chosen=True,
        prompt_from=drawn.choice((-1, 0, 0)),
        top=drawn.choice((0, 2, 5)),
        token_ids=drawn.choice(((), (28, 1_500))),
    )


@dataclass(frozen=True)
class Trace:
    """One run: the engine's settings, who comes at which step, and what else happens.

    arrivals: the number in the pool of each that comes, step by step. Chances are of each step.
    """

    seed: int
    settings: dict[str, object]
    growth_tokens: int
    arrivals: list[list[int]]
    retracts: float
    flushes: float
    cancels: float

    @property
    def kv_dtype(self) -> str:
        return str(self.settings.get("kv_dtype", "bf16"))


def trace_of(seed: int, most_requests: int = 64) -> Trace:
    drawn = random.Random(f"trace {seed}")
    settings: dict[str, object] = {
        "threads": drawn.choice((1, 2)),
        "max_step_tokens": drawn.choice((17, 24, 40, 80, 200, 512)),
        "max_total_tokens": drawn.choice((MOST_TOKENS, 192, 320, 1024, 4096)),
        "max_running_requests": drawn.choice((2, 8, 64)),
        "prefix_cache": drawn.choice(("on", "on", "on", "off")),
        "eviction": drawn.choice(("lru", "lfu", "fifo")),
        "speculate": drawn.choice(("ngram", "ngram", "off")),
        "schedule_policy": drawn.choice(("lpm", "fcfs", "priority", "fair")),
        "kv_dtype": drawn.choice(("bf16", "bf16", "bf16", "int8")),
    }
    num_steps = drawn.choice((1, 10, 60))
    arrivals: list[list[int]] = [[] for _ in range(num_steps)]
    for _ in range(drawn.randint(4, most_requests)):
        arrivals[drawn.randrange(num_steps)].append(drawn.randrange(POOL_SIZE))
    return Trace(
        seed=seed,
        settings=settings,
        growth_tokens=drawn.choice((0, 8, 128)),
        arrivals=arrivals,
        retracts=drawn.choice((0.0, 0.05, 0.3)),
        flushes=drawn.choice((0.0, 0.02, 0.2)),
        cancels=drawn.choice((0.0, 0.0, 0.05)),
    )


def play(trace: Trace, pool: list[GenerateRequest], judge: Judge) -> Bench:
    """Run it, and compare every answer with that of the request alone. Raises AssertionError."""
    drawn = random.Random(f"events {trace.seed}")
    bench = judge.bench(trace.settings, trace.growth_tokens)
    try:
        _run(trace, pool, bench, drawn)
        judge.compare_all(bench, trace.kv_dtype)
    finally:
        bench.loop.close()
    return bench


def _run(trace: Trace, pool: list[GenerateRequest], bench: Bench, drawn: random.Random) -> None:
    for chosen in trace.arrivals:
        for i in chosen:
            number = len(bench.asked) + 1
            bench.ask(pool[i], f"r{number}", number)
        bench.step()
        _disturb(trace, bench, drawn)
    while bench.step():
        _disturb(trace, bench, drawn)
    bench.finish()


def _disturb(trace: Trace, bench: Bench, drawn: random.Random) -> None:
    if drawn.random() < trace.retracts and bench.num_retract_calls < _MOST_RETRACTS:
        bench.retract_all()
    if drawn.random() < trace.flushes:
        bench.flush()
    if drawn.random() < trace.cancels:
        alive = [rid for rid, answer in bench.answers.items() if answer.ended is None]
        if alive:
            bench.cancel(RequestId(drawn.choice(alive)))
    bench.clock.advance(drawn.choice((0.0, 0.01, 1.0)))
