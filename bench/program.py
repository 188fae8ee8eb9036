"""Speed of whole steps of a model of SmolLM2-135M's shape with random 4-bit weights.

    python -m bench.program [--threads N] [--isa NAME] [--kv-dtype NAME]

Prints prefill tokens/s (a 2,048-token prompt in chunks of 512) and decode tokens/s by batch size
and context length, greedy and sampled. One line each: the best of several runs.
"""

import argparse
import time
import typing
from collections.abc import Callable

import numpy as np

from roost.core.settings import KvDtype
from roost.kernels import PackedMatrix, ThreadPool, Vector, choose_isa, usable_cores
from roost.programs import (
    AttentionSpec,
    CpuBuilder,
    CpuProgram,
    HeadRow,
    KvShape,
    RopeSpec,
    RowSampling,
    StepInputs,
)

HIDDEN, HEADS, KV_HEADS, HEAD_DIM, FFN, VOCAB, LAYERS = 576, 9, 3, 64, 1536, 49152, 30
GGML_Q4_1, GGML_Q8_0 = 3, 8
MAX_CONTEXT = 8192


def random_matrix(rng: np.random.Generator, ggml_type: int, rows: int, cols: int) -> PackedMatrix:
    scale_bytes, code_bytes = (4, 16) if ggml_type == GGML_Q4_1 else (2, 32)
    blocks = rng.integers(0, 256, (rows * cols // 32, scale_bytes + code_bytes), np.uint8)
    scales = np.full((len(blocks), scale_bytes // 2), 0.004, np.float16)
    if ggml_type == GGML_Q4_1:
        scales[:, 1] = -0.03
    blocks[:, :scale_bytes] = scales.view(np.uint8)
    return PackedMatrix.pack(ggml_type, blocks.reshape(-1), rows, cols)


def build(isa: str, pool: ThreadPool, kv_dtype: KvDtype) -> CpuProgram:
    rng = np.random.default_rng(0)
    b = CpuBuilder(
        max_rows=640,
        max_logits_rows=640,
        isa=isa,
        pool=pool,
        kv=KvShape(LAYERS, KV_HEADS, HEAD_DIM, kv_dtype),
        num_pages=64 * 160,
        max_context_tokens=MAX_CONTEXT,
    )
    head = random_matrix(rng, GGML_Q8_0, VOCAB, HIDDEN)
    ones = Vector(np.ones(HIDDEN))
    rope = RopeSpec("interleaved", tuple(float(10000.0 ** (-i / 32)) for i in range(32)))
    q_size, kv_size = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
    x = b.embed(head)
    for layer in range(LAYERS):
        h = b.rms_norm(x, ones, 1e-5)
        qkv_weight = random_matrix(rng, GGML_Q4_1, q_size + 2 * kv_size, HIDDEN)
        qkv = b.linear(h, qkv_weight, is_fine=True)
        q, k, v = b.split(qkv, q_size, kv_size, kv_size)
        spec = AttentionSpec(layer, HEADS, KV_HEADS, HEAD_DIM, HEAD_DIM**-0.5)
        a = b.attention(b.rope(q, rope, HEAD_DIM), b.rope(k, rope, HEAD_DIM), v, spec)
        x = b.add(x, b.linear(a, random_matrix(rng, GGML_Q4_1, HIDDEN, q_size)))
        both = b.linear(b.rms_norm(x, ones, 1e-5), random_matrix(rng, GGML_Q4_1, 2 * FFN, HIDDEN))
        gate, up = b.split(both, FFN, FFN)
        h = b.gated(gate, up, "silu")
        x = b.add(x, b.linear(h, random_matrix(rng, GGML_Q4_1, HIDDEN, FFN)))
    b.logits(b.rms_norm(x, ones, 1e-5), head)
    return b.finish()


def step(num_slices: int, start: int, stop: int, sampling: RowSampling) -> StepInputs:
    """Tokens [start, stop) of each of num_slices sequences; the last row of each is sampled."""
    length = stop - start
    pages = (stop + 15) // 16
    table = np.arange(num_slices * 160, dtype=np.int32).reshape(num_slices, 160)[:, :pages]
    heads = [HeadRow((i + 1) * length - 1, sampling, stop) for i in range(num_slices)]
    return StepInputs(
        np.arange(num_slices * length, dtype=np.int32) % 1000,
        np.tile(np.arange(start, stop, dtype=np.int32), num_slices),
        np.arange(num_slices + 1, dtype=np.int32) * length,
        np.ascontiguousarray(table.reshape(-1)),
        np.arange(num_slices + 1, dtype=np.int32) * pages,
        heads,
    )


def best_s(run: Callable[[], object], repeats: int) -> float:
    times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        run()
        times.append(time.perf_counter() - begin)
    return min(times)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--threads", type=int, default=usable_cores()[0])
    parser.add_argument("--isa", default=None)
    parser.add_argument("--kv-dtype", choices=typing.get_args(KvDtype), default="bf16")
    args = parser.parse_args()
    isa = choose_isa(args.isa)
    pool = ThreadPool(args.threads)
    program = build(isa, pool, args.kv_dtype)
    greedy = RowSampling()
    print(
        f"{isa}, {args.threads} threads, KV {args.kv_dtype}, buffers {program.nbytes / 1e6:.0f} MB"
    )
    chunks = [step(1, at, at + 512, greedy) for at in range(0, 2048, 512)]
    seconds = best_s(lambda: [program.run(chunk) for chunk in chunks], 3)
    print(f"prefill 2048: {2048 / seconds:8.0f} tokens/s")
    seconds = best_s(lambda: program.run(chunks[0]), 3)
    print(f"prefill  512: {512 / seconds:8.0f} tokens/s")
    sampled = RowSampling(temperature=0.8, top_p=0.95, seed=1)
    for num_slices, context in ((1, 64), (1, 2047), (8, 64), (8, 1000), (64, 64), (64, 500)):
        for name, sampling in (("greedy", greedy), ("top-p", sampled)):
            inputs = step(num_slices, context, context + 1, sampling)
            seconds = best_s(lambda inputs=inputs: program.run(inputs), 8)  # type: ignore[misc]
            rate = num_slices / seconds
            print(f"decode batch {num_slices:3} context {context:5} {name}: {rate:8.0f} tokens/s")
    program.close()
    pool.close()


if __name__ == "__main__":
    main()
