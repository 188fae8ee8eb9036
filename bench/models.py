"""A Llama-shaped model of 1.1 billion random weights, as GGUF files, where bandwidth rules.

    python -m bench.models FOLDER [--types q4_0 q8_0 bf16] [--layers 22]

Writes FOLDER/llama-1b-TYPE.gguf for `make bench ARGS="--model …"`. Hidden size 2,048, 22 layers, 32
query and 4 key and value heads, a feed-forward size of 5,632, and an output head of its own; the
vocabulary, its tokenizer and the chat template are the demo model's. The weights are drawn from a
normal distribution with the seed 0, so that all types hold the same numbers, rounded each its own
way; the models speak no language, and take as long as one that does.
"""

import argparse
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt
from bench.contestants import demo_model

from roost.weights import open_model

HIDDEN, HEADS, KV_HEADS, FFN, CONTEXT = 2_048, 32, 4, 5_632, 8_192
# Small enough that sums of thousands of products stay near 1.
_DEVIATION = 0.02
_ROWS_AT_ONCE = 4_096
_TYPES = ("q4_0", "q8_0", "bf16")
_STRING, _INT, _UINT = (
    gguf.GGUFValueType.STRING,
    gguf.GGUFValueType.INT32,
    gguf.GGUFValueType.UINT32,
)
_BOOL = gguf.GGUFValueType.BOOL


@dataclass(frozen=True)
class Tensor:
    """A tensor to be drawn. shape: outermost first; vectors are norms, all ones."""

    name: str
    shape: tuple[int, ...]


def tensors(num_layers: int, vocabulary: int) -> Iterator[Tensor]:
    """In the order in which they are drawn and written."""
    head_dim = HIDDEN // HEADS
    yield Tensor("token_embd.weight", (vocabulary, HIDDEN))
    yield Tensor("output_norm.weight", (HIDDEN,))
    yield Tensor("output.weight", (vocabulary, HIDDEN))
    for layer in range(num_layers):
        for name, shape in (
            ("attn_norm", (HIDDEN,)),
            ("attn_q", (HIDDEN, HIDDEN)),
            ("attn_k", (KV_HEADS * head_dim, HIDDEN)),
            ("attn_v", (KV_HEADS * head_dim, HIDDEN)),
            ("attn_output", (HIDDEN, HIDDEN)),
            ("ffn_norm", (HIDDEN,)),
            ("ffn_gate", (FFN, HIDDEN)),
            ("ffn_up", (FFN, HIDDEN)),
            ("ffn_down", (HIDDEN, FFN)),
        ):
            yield Tensor(f"blk.{layer}.{name}.weight", shape)


def drawn(tensor: Tensor, kind: gguf.GGMLQuantizationType) -> npt.NDArray[np.uint8]:
    """The bytes of a matrix, u8 [rows, bytes of a row]."""
    # By the name: the same numbers in every file, whatever is left out of it.
    rng = np.random.default_rng([0, *tensor.name.encode()])
    rows, cols = tensor.shape
    parts = []
    for begin in range(0, rows, _ROWS_AT_ONCE):
        count = min(_ROWS_AT_ONCE, rows - begin)
        values = rng.standard_normal((count, cols), np.float32) * np.float32(_DEVIATION)
        parts.append(gguf.quants.quantize(values, kind).view(np.uint8))
    return np.concatenate(parts)


def write(path: Path, kind: gguf.GGMLQuantizationType, num_layers: int) -> None:
    """One file, tensor by tensor: no more of it is in memory."""
    source = open_model(demo_model()).metadata
    tokens = source["tokenizer.ggml.tokens"]
    assert isinstance(tokens, list)
    writer = gguf.GGUFWriter(path, "llama")
    _describe(writer, num_layers, len(tokens))
    _copy_tokenizer(writer, source)
    wanted = list(tensors(num_layers, len(tokens)))
    for tensor in wanted:
        if len(tensor.shape) == 1:
            writer.add_tensor_info(
                tensor.name, tensor.shape, np.dtype(np.float32), tensor.shape[0] * 4
            )
        else:
            rows, cols = tensor.shape
            block, block_bytes = gguf.GGML_QUANT_SIZES[kind]
            row_bytes = cols // block * block_bytes
            writer.add_tensor_info(
                tensor.name, (rows, row_bytes), np.dtype(np.uint8), rows * row_bytes, kind
            )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for tensor in wanted:
        is_norm = len(tensor.shape) == 1
        data = np.ones(tensor.shape, np.float32) if is_norm else drawn(tensor, kind)
        writer.write_tensor_data(data)
    writer.close()


def _describe(writer: gguf.GGUFWriter, num_layers: int, vocabulary: int) -> None:
    writer.add_name("Random Llama 1.1B")
    writer.add_block_count(num_layers)
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(FFN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10_000.0)
    writer.add_rope_dimension_count(HIDDEN // HEADS)
    writer.add_vocab_size(vocabulary)


def _copy_tokenizer(writer: gguf.GGUFWriter, source: Mapping[str, object]) -> None:
    for key, value in source.items():
        if not key.startswith("tokenizer."):
            continue
        if isinstance(value, list):
            kind = _STRING if isinstance(value[0], str) else _INT
            writer.add_key_value(key, value, gguf.GGUFValueType.ARRAY, kind)
        elif isinstance(value, bool):
            writer.add_key_value(key, value, _BOOL)
        else:
            writer.add_key_value(key, value, _STRING if isinstance(value, str) else _UINT)


def main() -> None:
    parser = argparse.ArgumentParser(description="Write the 1.1B model of random weights.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--types", nargs="+", choices=_TYPES, default=list(_TYPES))
    parser.add_argument("--layers", type=int, default=22)
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    for name in options.types:
        path = options.folder / f"llama-1b-{name}.gguf"
        write(path, gguf.GGMLQuantizationType[name.upper()], options.layers)
        print(f"{path.name}: {path.stat().st_size / 1e6:,.0f} MB", flush=True)


if __name__ == "__main__":
    main()
