"""Write the logprob goldens: what a float32 model makes of the prompts, and llama.cpp's distance.

    python -m bench.parity.reference --smollm2 S.gguf [--gemma3 G.gguf] [--golden tests/golden]

Needs torch, transformers, gguf and llama-cpp-python (`bench/parity/requirements.txt`), none of
which roost needs. For each prompt, `NAME.npz` holds arrays named `prompt/what`:

- `ids`: i32 [n], the prompt;
- `next`: f32 [n - 1], log p(ids[i + 1] | ids[0..i]), natural logarithm, temperature 1;
- `positions`: i32 [p], some positions, the last among them; `top_ids`: i32 [p, 5] and
  `top_logprobs`: f32 [p, 5], the five likeliest next tokens there, best first;
- `greedy_ids`: i32 [32], the greedy continuation (its end-of-sequence tokens do not end it), and
  `greedy_margins`: f32 [32], by how much each led the second likeliest, in nats.

`parity.json` holds the figures of llama.cpp and of the reference on the same ids. Perplexity is
over non-overlapping windows of 512 tokens of `text.txt` (a partial last one is left out), each from
an empty context, all 511 next tokens scored.
"""

import argparse
import json
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import llama_cpp
import numpy as np
import torch
import transformers
from bench.parity.dequantised import load
from bench.parity.llama_peer import LlamaModel, LlamaVocab
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Logprobs = Callable[[list[int]], Floats]

_TOP = 5
_GREEDY_TOKENS = 32
_POSITIONS = 24
_WINDOW = 512


@dataclass(frozen=True)
class Distance:
    """How far next-token logprobs lie from the reference, in nats, over all positions."""

    positions: int
    mean_abs_error: float
    p99_abs_error: float
    max_abs_error: float
    mean_error: float


def reference_logprobs(model: transformers.PreTrainedModel) -> Logprobs:
    """ids → f32 [len(ids), vocabulary], by the float32 model in one pass."""

    def logprobs(ids: list[int]) -> Floats:
        with torch.inference_mode():
            found: Floats = model(torch.tensor([ids])).logits[0].log_softmax(-1).numpy()
        return found

    return logprobs


def llama_cpp_logprobs(model: LlamaModel) -> Logprobs:
    """ids → f32 [len(ids), vocabulary], by llama.cpp in chunks of 512 tokens."""

    def logprobs(ids: list[int]) -> Floats:
        found: Floats = torch.from_numpy(model.logits(ids)).log_softmax(-1).numpy()
        return found

    return logprobs


def greedy(model: transformers.PreTrainedModel, ids: list[int]) -> tuple[list[int], list[float]]:
    """The greedy continuation of `ids`, and the lead of each token over the second, in nats."""
    chosen: list[int] = []
    margins: list[float] = []
    with torch.inference_mode():
        result = model(torch.tensor([ids]), use_cache=True)
        for _ in range(_GREEDY_TOKENS):
            best, second = result.logits[0, -1].topk(2).values.tolist()
            chosen.append(int(result.logits[0, -1].argmax()))
            margins.append(best - second)
            result = model(
                torch.tensor([chosen[-1:]]), past_key_values=result.past_key_values, use_cache=True
            )
    return chosen, margins


def golden(
    name: str, ids: list[int], model: transformers.PreTrainedModel, logprobs: Floats
) -> dict[str, NDArray[np.generic]]:
    """The arrays that are kept of one prompt."""
    count = min(_POSITIONS, len(ids))
    positions = np.unique(np.linspace(0, len(ids) - 1, count).round().astype(np.int32))
    order = np.argsort(-logprobs[positions], axis=-1, kind="stable")[:, :_TOP].astype(np.int32)
    continuation, margins = greedy(model, ids)
    return {
        f"{name}/ids": np.array(ids, np.int32),
        f"{name}/next": next_logprobs(logprobs, ids),
        f"{name}/positions": positions,
        f"{name}/top_ids": order,
        f"{name}/top_logprobs": np.take_along_axis(logprobs[positions], order, axis=-1),
        f"{name}/greedy_ids": np.array(continuation, np.int32),
        f"{name}/greedy_margins": np.array(margins, np.float32),
    }


def next_logprobs(logprobs: Floats, ids: list[int]) -> Floats:
    """f32 [len(ids) - 1]: the logprob of each token that does follow."""
    return logprobs[np.arange(len(ids) - 1), ids[1:]]


def distance(errors: list[Floats]) -> Distance:
    """The figures of all prompts' errors together."""
    error = np.concatenate(errors).astype(np.float64)
    return Distance(
        positions=error.size,
        mean_abs_error=round(float(np.abs(error).mean()), 6),
        p99_abs_error=round(float(np.quantile(np.abs(error), 0.99)), 6),
        max_abs_error=round(float(np.abs(error).max()), 6),
        mean_error=round(float(error.mean()), 6),
    )


def window_losses(logprobs: Logprobs, ids: list[int]) -> list[float]:
    """The mean negative logprob of each window of `_WINDOW` tokens (see the top)."""
    losses: list[float] = []
    for start in range(0, len(ids) - _WINDOW + 1, _WINDOW):
        window = ids[start : start + _WINDOW]
        found = next_logprobs(logprobs(window), window)
        losses.append(round(-float(found.astype(np.float64).mean()), 6))
    return losses


def perplexities(ours: Logprobs, theirs: Logprobs, ids: list[int]) -> dict[str, object]:
    """The figures of both on `ids`."""
    reference, llama_cpp_losses = window_losses(ours, ids), window_losses(theirs, ids)
    return {
        "window_tokens": _WINDOW,
        "windows": len(reference),
        "reference": round(math.exp(float(np.mean(reference))), 6),
        "llama_cpp": round(math.exp(float(np.mean(llama_cpp_losses))), 6),
        "reference_losses": reference,
        "llama_cpp_losses": llama_cpp_losses,
    }


def gemma_prompts(path: Path, prose: str) -> dict[str, list[int]]:
    """Prompts for Gemma 3; the longest reaches well past its window of 512 tokens."""
    texts = {
        "one_token": ("", 1),
        "question": ("The capital of France is", 16),
        "turn": ("<start_of_turn>user\nWhat is a roost?<end_of_turn>\n<start_of_turn>model\n", 64),
        "scripts": ("L'été à Paris; 今天天气很好; नमस्ते दुनिया; مرحباً بالعالم 🐦", 64),
        "prose_300": (prose, 300),
        "prose_900": (prose[9_000:], 900),
    }
    with LlamaVocab(path) as vocab:
        return {
            name: vocab.encode(text, add_special=True, parse_special=True)[:most]
            for name, (text, most) in texts.items()
        }


def measure(path: Path, prompts: dict[str, list[int]], text: list[int], out: Path) -> object:
    """Write the goldens of the model at `path` to `out`; return the figures."""
    model = load(path)
    ours = reference_logprobs(model)
    arrays: dict[str, NDArray[np.generic]] = {}
    errors: dict[str, Floats] = {}
    agreed = total = 0
    with LlamaModel(path, max_tokens=2_048) as peer:
        theirs = llama_cpp_logprobs(peer)
        for name, ids in prompts.items():
            logprobs, other = ours(ids), theirs(ids)
            arrays |= golden(name, ids, model, logprobs)
            errors[name] = next_logprobs(other, ids) - next_logprobs(logprobs, ids)
            agreed += int((logprobs.argmax(-1) == other.argmax(-1)).sum())
            total += len(ids)
            print(f"  {name:14} {len(ids):5} tokens, llama.cpp off by {_mean(errors[name]):.4f}")
        figures: dict[str, object] = {
            "llama_cpp": asdict(distance(list(errors.values())))
            | {"top_1_agreement": round(agreed / total, 6)},
            "llama_cpp_by_prompt": {name: _mean(error) for name, error in errors.items()},
        }
        if text:
            figures["perplexity"] = perplexities(ours, theirs, text)
    with out.open("wb") as file:
        np.savez_compressed(file, allow_pickle=False, **dict(sorted(arrays.items())))
    print(f"{out}: {out.stat().st_size} bytes")
    return figures


def _mean(error: Floats) -> float:
    return round(float(np.abs(error).mean()), 6) if error.size else 0.0


def main() -> None:
    parser = argparse.ArgumentParser(description="Write the logprob goldens.")
    parser.add_argument("--smollm2", type=Path, required=True)
    parser.add_argument("--gemma3", type=Path)
    parser.add_argument("--golden", type=Path, default=Path("tests/golden"))
    options = parser.parse_args()
    folder = options.golden / "parity"
    prose = (folder / "text.txt").read_text()
    with LlamaVocab(options.smollm2) as vocab:
        text = vocab.encode(prose, add_special=False, parse_special=False)
    prompts: dict[str, list[int]] = json.loads((folder / "prompts.json").read_text())
    figures: dict[str, object] = {
        "how": "bench/parity/reference.py states it. Errors are in nats, against float32.",
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "llama_cpp_python": llama_cpp.__version__,
        "cpu": torch.backends.cpu.get_cpu_capability(),
        "smollm2": measure(options.smollm2, prompts, text, folder / "smollm2.npz"),
    }
    out = options.golden / "parity.json"
    if options.gemma3 is not None:
        chosen = gemma_prompts(options.gemma3, prose)
        figures["gemma3"] = measure(options.gemma3, chosen, [], folder / "gemma3.npz")
    elif out.exists():
        figures["gemma3"] = json.loads(out.read_text())["gemma3"]
    out.write_text(json.dumps(figures, indent=1) + "\n")
    print(out.read_text())


if __name__ == "__main__":
    main()
