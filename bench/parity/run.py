"""Recompute every golden file: `make parity`.

    python -m bench.parity.run [--gemma3 GEMMA.gguf] [--jargon jargon.txt.gz]

Torch, transformers and llama.cpp are installed into a virtual environment of their own under
`build/`, not beside roost. Takes tens of minutes on two cores, most of them for building llama.cpp
out of `llama-cpp-python`. Without `--gemma3` that model's goldens stay as they are, and so does the
text without `--jargon` (see `text.py`).
"""

import argparse
import subprocess
import venv
from pathlib import Path

from bench.contestants import demo_model

_HERE = Path(__file__).parent
_ROOT = _HERE.parents[1]


def environment(folder: Path) -> Path:
    """The interpreter of the virtual environment in `folder`, made when it is not there."""
    python = folder / "bin" / "python"
    installed = folder / "requirements.txt"
    wanted = (_HERE / "requirements.txt").read_text()
    if not installed.exists() or installed.read_text() != wanted:
        venv.create(folder, with_pip=True, clear=True)
        requirements = str(_HERE / "requirements.txt")
        subprocess.run([python, "-m", "pip", "install", "-q", "-r", requirements], check=True)
        installed.write_text(wanted)
    return python


def main() -> None:
    parser = argparse.ArgumentParser(description="Recompute the golden files.")
    parser.add_argument("--smollm2", type=Path, help="GGUF file; the demo model by default")
    parser.add_argument("--gemma3", type=Path)
    parser.add_argument("--jargon", type=Path)
    options = parser.parse_args()
    python = environment(_ROOT / "build" / "parity")
    smollm2 = str(options.smollm2 or demo_model())
    models = ["--smollm2", smollm2]
    if options.gemma3:
        models += ["--gemma3", str(options.gemma3)]
    steps = [
        ["bench.parity.tokenizer_goldens", *models],
        ["bench.parity.prompts", "--model", smollm2],
        ["bench.parity.tiny_reference"],
        ["bench.parity.reference", *models],
    ]
    if options.jargon:
        steps.insert(0, ["bench.parity.text", str(options.jargon)])
    for step in steps:
        print("$", *step, flush=True)
        subprocess.run([python, "-m", *step], check=True, cwd=_ROOT)


if __name__ == "__main__":
    main()
