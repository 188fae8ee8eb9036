// From the blocks of model files to the layout of layout.h, once, when a model is loaded.
//
// A block of 16 matrix rows is packed by itself: a caller may cut the rows at multiples of 16, pack
// the parts in any order or on several threads, stack matrices of one format (whose rows are
// multiples of 16) by packing them one after the other, and show progress in between.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "kernels.h"

namespace roost {

// Type numbers of the GGUF format.
enum class GgmlType : int32_t {
  kF32 = 0,
  kF16 = 1,
  kQ4_0 = 2,
  kQ4_1 = 3,
  kQ5_0 = 6,
  kQ5_1 = 7,
  kQ8_0 = 8,
  kQ4_K = 12,
  kQ5_K = 13,
  kQ6_K = 14,
  kBF16 = 30,
};

// The packed format of a file type; nothing for types that are not supported.
std::optional<WeightFormat> format_of_ggml(int32_t ggml_type);

// Values in a block of the file type (a row holds whole blocks), and its size.
int64_t source_block_cols(GgmlType type);
int64_t source_row_nbytes(GgmlType type, int64_t cols);

// Size of 16 packed rows, and of a whole matrix. Multiples of 64.
int64_t packed_block_nbytes(WeightFormat format, int64_t cols);
int64_t packed_nbytes(WeightFormat format, int64_t rows, int64_t cols);

// The power of two by which a matrix's scales are divided before they are stored as f16, so that the
// largest is in [0.5, 1): the K types compute scales as products, which may leave the good range of
// f16. 1 for the other types, whose scales are f16 in the file and are kept as they are.
// For a stack of matrices take the largest of their scales.
float choose_scale(GgmlType type, const uint8_t* src, int64_t rows, int64_t cols);

// `rows` rows of file blocks at src → their packed blocks at dst (64-byte aligned). `scale` from
// choose_scale. The last block is filled up with zeros.
void pack_rows(GgmlType type, const uint8_t* src, int64_t rows, int64_t cols, float scale, uint8_t* dst);

// A whole matrix: chooses the scale and returns it.
float pack(GgmlType type, const uint8_t* src, int64_t rows, int64_t cols, uint8_t* dst);

// Quantise on load: f32, f16 or bf16 rows → kU8 (bits = 8) or kU4M (bits = 4), groups of 32.
// cols is a multiple of 32. Values must be finite. Scale as above.
WeightFormat quantised_format(int bits);
float choose_quantised_scale(GgmlType type, const uint8_t* src, int64_t rows, int64_t cols, int bits);
void quantise_rows(GgmlType type, const uint8_t* src, int64_t rows, int64_t cols, int bits, float scale, uint8_t* dst);

}  // namespace roost
