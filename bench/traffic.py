"""What one token costs at least: bytes to move and multiply-adds to do, by the model's file."""

from dataclasses import dataclass
from math import prod
from pathlib import Path

from roost import _native
from roost.weights import open_model


@dataclass(frozen=True)
class Traffic:
    """Of one token. weight_bytes: the packed matrices that it is multiplied with, head included.

    A row of the embedding table is not counted, nor are the vectors of the norms: they are small.
    """

    file_bytes: int
    weight_bytes: int
    layer_macs: int
    head_macs: int
    kv_bytes_per_token: int

    def decode_bytes(self, context_tokens: float) -> float:
        """Bytes that must move for one new token, so many before it in the (bf16) cache."""
        return self.weight_bytes + self.kv_bytes_per_token * context_tokens


def traffic_of(path: Path) -> Traffic:
    """Raises ModelError for a file that is no GGUF model of a known shape."""
    files = open_model(path)
    matrices = {name: t for name, t in files.tensors.items() if len(t.shape) == 2}
    table = matrices["token_embd.weight"]
    head = matrices.get("output.weight", table)
    layers = [t for t in matrices.values() if t is not table and t is not head]

    def number(key: str, default: int = 0) -> int:
        value = files.metadata.get(f"{files.architecture}.{key}", default)
        assert isinstance(value, int)
        return value

    heads = number("attention.head_count")
    head_dim = number("attention.key_length", number("embedding_length") // heads)
    kv_heads = number("attention.head_count_kv", heads)
    return Traffic(
        file_bytes=path.stat().st_size,
        weight_bytes=sum(_native.packed_nbytes(t.type, *t.shape) for t in (*layers, head)),
        layer_macs=sum(prod(t.shape) for t in layers),
        head_macs=prod(head.shape),
        kv_bytes_per_token=number("block_count") * kv_heads * head_dim * 2 * 2,
    )
