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

// Names what the kernels compute, to the bit: it is counted up with every change of any result, also
// of attention or of the ops on rows. What was kept on disk under another number is not read again.
constexpr int32_t kNumerics = 2;

// How a packed matrix is stored. Uk: unsigned k-bit codes. With M: a scale and a minimum a group,
// w = scale · code − minimum. Without: w = scale · (code − 2^(k−1)).
enum class WeightFormat : int32_t {
  kF32 = 0,
  kF16 = 1,
  kBF16 = 2,
  kU4M = 3,    // Q4_1, Q4_K
  kU4 = 4,     // Q4_0
  kU5M = 5,    // Q5_1, Q5_K
  kU5 = 6,     // Q5_0
  kU6G16 = 7,  // Q6_K: a scale for 16 inputs
  kU8 = 8,     // Q8_0
};

static inline constexpr bool is_quantised(WeightFormat format) { return format >= WeightFormat::kU4M; }

// A matrix [rows outputs, cols inputs] in the layout that the kernels stream (see pack.h). It does
// not own `data` (64-byte aligned). `scale` is a power of two that multiplies every result.
struct PackedMatrix {
  WeightFormat format;
  int64_t rows;
  int64_t cols;
  float scale;
  const uint8_t* data;
};

// 32 activations: x ≈ q · scale, and what the kernels would otherwise compute again for each block
// of weights. An activation that is not finite makes `scale` NaN and q zero: its row's results are NaN.
struct QuantGroup {
  int8_t q[32];       // −127 … 127
  float scale;        // largest magnitude / 127, or 0
  float scaled_sum;   // scale · float(sum)
  int32_t sum;        // of q
  int32_t first_sum;  // of q[0] … q[15]
};
static_assert(sizeof(QuantGroup) == 48);

// 32 activations as integers of two bytes, in the order in which the kernels take them: of each four
// inputs first the even ones, then the odd. Otherwise as above.
struct FineGroup {
  int16_t q[32];       // −32767 … 32767; q[4s … 4s + 3] are of the inputs 4s, 4s + 2, 4s + 1, 4s + 3
  float scale;         // largest magnitude / 32767, or 0
  float scaled_sum;    // scale · float(sum)
  int32_t sum;         // of q
  int32_t first_sum;   // of q[0] … q[15]
  int32_t padding[4];  // so that it takes the place of two groups of one byte
};
static_assert(sizeof(FineGroup) == 2 * sizeof(QuantGroup));

// Rows of quantised activations, one after the other. cols is a multiple of 32. A row has cols / 32
// groups: of one byte an activation (one term), or fine ones (two).
struct QuantRows {
  const QuantGroup* groups;  // the first of FineGroup, where num_terms is 2
  int64_t cols;
  int num_terms;  // 1 or 2
};

// What to do with a result: y = result (+ bias) (+ what y held).
struct Epilogue {
  const float* bias;  // [rows of the matrix] or null
  bool accumulate;    // add to y: the residual
};

// A block is 16 matrix rows, that is, 16 columns of y; [block_begin, block_end) of them are computed,
// for all num_rows rows of activations. y's row t starts at y + t * y_stride (floats).
struct LinearKernels {
  // Quantised weights × quantised activations.
  void (*linear_quant)(const PackedMatrix& w, const QuantRows& x, int64_t num_rows, float* y, int64_t y_stride,
                       int64_t block_begin, int64_t block_end, const Epilogue& epilogue);
  // f32, f16, bf16 weights × f32 activations (row t at x + t * x_stride).
  void (*linear_float)(const PackedMatrix& w, const float* x, int64_t x_stride, int64_t num_rows, float* y,
                       int64_t y_stride, int64_t block_begin, int64_t block_end, const Epilogue& epilogue);
  // One row of activations [cols] → its cols / 32 groups: see QuantRows.
  void (*quantize_row)(const float* x, int64_t cols, int num_terms, QuantGroup* out);
  // Matrix row `row` → f32 [cols], for embeddings.
  void (*dequantize_row)(const PackedMatrix& w, int64_t row, float* out);
};

namespace portable {
extern const LinearKernels linear_kernels;
}
namespace avx2 {
extern const LinearKernels linear_kernels;
}
namespace avx512 {
extern const LinearKernels linear_kernels;
}

}  // namespace roost
