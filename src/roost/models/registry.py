"""From an architecture's name to its model file, and from files to a model ready to record."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from roost.core.errors import UnsupportedModel
from roost.models.architecture import ModelTraits, Outline, Recorder
from roost.models.gemma3 import GEMMA3
from roost.models.llama import LLAMA
from roost.models.qwen2 import QWEN2
from roost.models.qwen3 import QWEN3
from roost.programs.builder import Builder
from roost.weights import ModelFiles, PackOptions, WeightPlanner, pack_weights

# The names that GGUF files (`general.architecture`) and config.json (`architectures`) use.
ARCHITECTURES: Final[dict[str, Callable[[ModelFiles], Outline]]] = {
    "llama": LLAMA.outline,
    "LlamaForCausalLM": LLAMA.outline,
    "MistralForCausalLM": LLAMA.outline,
    "qwen2": QWEN2.outline,
    "Qwen2ForCausalLM": QWEN2.outline,
    "qwen3": QWEN3.outline,
    "Qwen3ForCausalLM": QWEN3.outline,
    "gemma3": GEMMA3.outline,
    "Gemma3ForCausalLM": GEMMA3.outline,
}


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model with its weights packed. `record` says the forward pass to a builder.

    notes: what was decided on the way, for people.
    """

    traits: ModelTraits
    record: Recorder
    notes: tuple[str, ...]


def outline_model(files: ModelFiles) -> Outline:
    """Read the hyperparameters. Raises UnsupportedModel for an architecture that is not known."""
    outline = ARCHITECTURES.get(files.architecture)
    if outline is None:
        raise UnsupportedModel(
            f"{files.path}: the architecture {files.architecture!r} is not supported; "
            f"{', '.join(ARCHITECTURES)} are",
        )
    return outline(files)


def plan_weights(files: ModelFiles, outline: Outline) -> tuple[WeightPlanner, Recorder]:
    """Check every tensor against the hyperparameters, reading none.

    The recorder that comes with it runs over plans in place of weights.
    """
    planner = WeightPlanner(files, outline.local_name)
    recorder = outline.bind(planner)
    planner.check_all_used(outline.ignored)
    return planner, recorder


def load_model(files: ModelFiles, options: PackOptions) -> LoadedModel:
    """Check everything, then pack the weights or map those of an earlier start.

    Raises ModelError naming the tensor or hyperparameter at fault, and UnsupportedModel.
    """
    outline = outline_model(files)
    planner, _ = plan_weights(files, outline)
    packed = pack_weights(files, planner, options)
    record: Callable[[Builder], None] = outline.bind(packed)
    return LoadedModel(outline.traits, record, packed.notes)
