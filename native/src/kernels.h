// The table of kernels that each instruction set fills, and the plain structs they share.
//
// Every kernel computes one output row by the same operations in the same order, whatever the
// number of rows, the thread that runs it, or the part of the work it was given. Reductions over K
// run from low to high in each lane; a lane is one output. The integer sums inside a group are
// exact, and the float steps around them are written with fused multiply-adds in every instruction
// set, so the linear kernels agree to the bit between instruction sets as well.
#pragma once

#include <cstddef>
#include <cstdint>

namespace roost {

constexpr int64_t kBlockRows = 16;  // output rows of a weight block: the lanes of a 512-bit register
constexpr int64_t kGroup = 32;      // inputs that share an activation scale (and most weight scales)
constexpr int64_t kPageTokens = 16;

// How a packed matrix is stored. Uk: unsigned k-bit codes. `M`: scale and minimum a group
// (w = scale · code − min, GGUF's sign convention settled by the packer). Without M: symmetric, w = scale · (code − 2^(k−1)).
enum class WeightFormat : int32_t {
  kF32 = 0,
  kF16 = 1,
  kBF16 = 2,
  kU4M = 3,    // Q4_1, Q4_K
  kU4 = 4,     // Q4_0
  kU5M = 5,    // Q5_1, Q5_K
  kU5 = 6,     // Q5_0
  kU6G16 = 7,  // Q6_K: groups of 16
  kU8 = 8,     // Q8_0 (code = value + 128)
};

// A matrix [rows outputs, cols inputs] in the layout that the kernels stream. It does not own `data`
// (64-byte aligned). `scale` is a power of two that multiplies every result.
struct PackedMatrix {
  WeightFormat format;
  int64_t rows;
  int64_t cols;
  float scale;
  const uint8_t* data;
};

// Activations quantised a row at a time in groups of 32: x ≈ q · scale. sums[2g], sums[2g + 1] are
// the sums of q over the two halves of group g. cols is a multiple of 32.
struct QuantRows {
  int8_t* q;           // [rows, cols]
  float* scale;        // [rows, cols / 32]
  int16_t* sums;       // [rows, cols / 16]
  int64_t cols;
};

// What to do with a result: y = result (+ bias) (+ what y held).
struct Epilogue {
  const float* bias;  // [rows of the matrix] or null
  bool accumulate;    // add to y: the residual
};

struct LinearKernels {
  // q codes × int8 activations. Rows of y are `y_stride` floats apart; output blocks
  // [block_begin, block_end) of 16 matrix rows are computed, for all num_rows activation rows.
  void (*linear_quant)(const PackedMatrix& w, const QuantRows& x, int64_t num_rows, float* y, int64_t y_stride,
                       int64_t block_begin, int64_t block_end, const Epilogue& epilogue);
  // f32, f16, bf16 weights × f32 activations (x_stride floats apart).
  void (*linear_float)(const PackedMatrix& w, const float* x, int64_t x_stride, int64_t num_rows, float* y,
                       int64_t y_stride, int64_t block_begin, int64_t block_end, const Epilogue& epilogue);
  // One row of activations → q, scale, sums at the row's place.
  void (*quantize_row)(const float* x, int64_t cols, int8_t* q, float* scale, int16_t* sums);
  // Matrix row `row` → f32 [cols], for embeddings.
  void (*dequantize_row)(const PackedMatrix& w, int64_t row, float* out);
};

}  // namespace roost
