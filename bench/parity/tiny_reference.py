"""Write `tiny.npz`: the float32 logits of the tiny models that `tests/golden/tiny_models.py` makes.

    python -m bench.parity.tiny_reference [--out tests/golden/parity/tiny.npz]

Arrays, named `variant/what`: `next`, f32 [n - 1], the logprob of each token that follows in
`prompt_ids()`; `positions`, i32 [p]; `logits`, f32 [p, vocabulary], there. Models of 16-bit weights
run in float32 as well, so that only their weights are rounded.
"""

import argparse
import tempfile
from pathlib import Path

import numpy as np
import torch
import transformers
from numpy.typing import NDArray
from tests.golden.tiny_models import PROMPT_TOKENS, VARIANTS, prompt_ids, write_model

_POSITIONS = np.array([0, 1, 31, PROMPT_TOKENS - 1], np.int32)


def main() -> None:
    parser = argparse.ArgumentParser(description="Write the tiny models' goldens.")
    parser.add_argument("--out", type=Path, default=Path("tests/golden/parity/tiny.npz"))
    options = parser.parse_args()
    ids = prompt_ids()
    arrays: dict[str, NDArray[np.generic]] = {}
    for variant in VARIANTS:
        with tempfile.TemporaryDirectory() as folder:
            write_model(Path(folder), variant)
            model, report = transformers.AutoModelForCausalLM.from_pretrained(
                folder,
                dtype=torch.float32,
                attn_implementation="eager",
                output_loading_info=True,
            )
        assert not any(report.values()), f"{variant.name}: {report}"
        with torch.inference_mode():
            logits = model(torch.tensor([ids])).logits[0]
        logprobs = logits.log_softmax(-1).numpy()
        arrays[f"{variant.name}/next"] = logprobs[np.arange(len(ids) - 1), ids[1:]]
        arrays[f"{variant.name}/positions"] = _POSITIONS
        arrays[f"{variant.name}/logits"] = logits.numpy()[_POSITIONS]
        spread = float(logits.std())
        print(f"{variant.name:22} logits spread {spread:.2f}  {model.config.rope_parameters}")
    with options.out.open("wb") as file:
        np.savez_compressed(file, allow_pickle=False, **dict(sorted(arrays.items())))
    print(f"{options.out}: {options.out.stat().st_size} bytes")


if __name__ == "__main__":
    main()
