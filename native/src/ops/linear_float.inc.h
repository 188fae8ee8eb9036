// y[t, n] = Σ_k w[n, k] · x[t, k] (+ bias) (+ y), by fma from k = 0 up; lanes are matrix rows.
//
// A fused multiply-add waits four cycles for the one before it, so several rows or blocks run side
// by side. Expects linear_quant.inc.h (Output, finish, unroll) before it.
namespace roost::ROOST_ISA {
namespace {

// The 16 lanes of inputs k (even) and k + 1.
template <WeightFormat kFormat>
ROOST_INLINE void load_pair(const uint8_t* block, int64_t k, F32& even, F32& odd) {
  if constexpr (kFormat == WeightFormat::kF32) {
    const float* p = reinterpret_cast<const float*>(block) + k * kBlockRows;
    even = F32::load(p);
    odd = F32::load(p + kBlockRows);
  } else {
    const uint16_t* p = reinterpret_cast<const uint16_t*>(block) + k * kBlockRows;
    if constexpr (kFormat == WeightFormat::kF16) {
      even = F32::load_f16(p);
      odd = F32::load_f16(p + kBlockRows);
    } else {
      F32::load_bf16_pairs(p, even, odd);
    }
  }
}

template <WeightFormat kFormat, int kRows, int kBlocks>
__attribute__((noinline)) void float_tile(const PackedMatrix& w, const float* x, int64_t x_stride, float* y,
                                          int64_t y_stride, int64_t block, const Epilogue& epilogue) {
  constexpr int64_t kValueBytes = kFormat == WeightFormat::kF32 ? 4 : 2;
  // Lines asked for ahead of use, in inputs: 2 KB of weights.
  constexpr int64_t kAhead = 2048 / (kValueBytes * kBlockRows);
  const int64_t block_nbytes = (w.cols + 1) / 2 * 2 * kBlockRows * kValueBytes;
  const uint8_t* blocks[kBlocks];
  F32 acc[kRows][kBlocks];
  for (int b = 0; b < kBlocks; ++b) {
    blocks[b] = w.data + (block + b) * block_nbytes;
    for (int r = 0; r < kRows; ++r) acc[r][b] = F32::zero();
  }
  int64_t k = 0;
  for (; k + 2 <= w.cols; k += 2) {
    unroll<kBlocks>([&](auto b) __attribute__((always_inline)) {
      constexpr int kB = decltype(b)::value;
      F32 even;
      F32 odd;
      const float* x_again = x + k;
      if constexpr (kRows > 1 && kBlocks > 1) {
        // Read for each block: kept from the block before, they would push a sum out of its register.
        asm volatile("" : "+r"(x_again));
      }
      load_pair<kFormat>(blocks[kB], k, even, odd);
      prefetch(blocks[kB] + (k + kAhead) * kBlockRows * kValueBytes);
      unroll<kRows>([&](auto r) __attribute__((always_inline)) {
        constexpr int kR = decltype(r)::value;
        acc[kR][kB] = fma(even, F32::splat(x_again[kR * x_stride]), acc[kR][kB]);
        acc[kR][kB] = fma(odd, F32::splat(x_again[kR * x_stride + 1]), acc[kR][kB]);
      });
    });
  }
  for (int b = 0; b < kBlocks; ++b) {
    const Output out = block_output(w, y, y_stride, block + b, epilogue);
    F32 even = F32::zero();
    F32 odd = F32::zero();
    if (k < w.cols) load_pair<kFormat>(blocks[b], k, even, odd);
    for (int r = 0; r < kRows; ++r) {
      if (k < w.cols) acc[r][b] = fma(even, F32::splat(x[r * x_stride + k]), acc[r][b]);
      finish(out, r, acc[r][b]);
    }
  }
}

// kRows rows over all blocks, as many blocks side by side as there are accumulators for.
template <WeightFormat kFormat, int kRows>
void float_rows(const PackedMatrix& w, const float* x, int64_t x_stride, float* y, int64_t y_stride,
                int64_t block_begin, int64_t block_end, const Epilogue& epilogue) {
  constexpr int kBlocks = kFloatAccumulators / kRows > 4 ? 4 : kFloatAccumulators / kRows;
  int64_t block = block_begin;
  for (; block + kBlocks <= block_end; block += kBlocks) {
    float_tile<kFormat, kRows, kBlocks>(w, x, x_stride, y, y_stride, block, epilogue);
  }
  for (; block < block_end; ++block) {
    float_tile<kFormat, kRows, 1>(w, x, x_stride, y, y_stride, block, epilogue);
  }
}

// The largest tile that the rows left still fill, then half of it.
template <WeightFormat kFormat, int kRows>
void float_chunk(const PackedMatrix& w, const float* x, int64_t x_stride, int64_t num_rows, float* y, int64_t y_stride,
                 int64_t block_begin, int64_t block_end, const Epilogue& epilogue) {
  for (; num_rows >= kRows; num_rows -= kRows, x += kRows * x_stride, y += kRows * y_stride) {
    float_rows<kFormat, kRows>(w, x, x_stride, y, y_stride, block_begin, block_end, epilogue);
  }
  if constexpr (kRows > 1) {
    float_chunk<kFormat, kRows / 2>(w, x, x_stride, num_rows, y, y_stride, block_begin, block_end, epilogue);
  }
}

// Blocks that stay in the second level cache while all rows pass over them.
constexpr int64_t kFloatChunkBytes = 128 * 1024;

template <WeightFormat kFormat>
void linear_float_of(const PackedMatrix& w, const float* x, int64_t x_stride, int64_t num_rows, float* y,
                     int64_t y_stride, int64_t block_begin, int64_t block_end, const Epilogue& epilogue) {
  constexpr int64_t kValueBytes = kFormat == WeightFormat::kF32 ? 4 : 2;
  int64_t chunk = kFloatChunkBytes / (w.cols * kBlockRows * kValueBytes) / 4 * 4;
  if (chunk < 4) chunk = 4;
  for (int64_t block = block_begin; block < block_end; block += chunk) {
    const int64_t end = block_end - block < chunk ? block_end : block + chunk;
    float_chunk<kFormat, kFloatTileRows>(w, x, x_stride, num_rows, y, y_stride, block, end, epilogue);
  }
}

void linear_float(const PackedMatrix& w, const float* x, int64_t x_stride, int64_t num_rows, float* y, int64_t y_stride,
                  int64_t block_begin, int64_t block_end, const Epilogue& epilogue) {
  switch (w.format) {
    case WeightFormat::kF32:
      return linear_float_of<WeightFormat::kF32>(w, x, x_stride, num_rows, y, y_stride, block_begin, block_end,
                                                 epilogue);
    case WeightFormat::kF16:
      return linear_float_of<WeightFormat::kF16>(w, x, x_stride, num_rows, y, y_stride, block_begin, block_end,
                                                 epilogue);
    case WeightFormat::kBF16:
      return linear_float_of<WeightFormat::kBF16>(w, x, x_stride, num_rows, y, y_stride, block_begin, block_end,
                                                  epilogue);
    default:
      __builtin_trap();  // a quantised matrix: the caller chose the wrong kernel
  }
}

}  // namespace
}  // namespace roost::ROOST_ISA
