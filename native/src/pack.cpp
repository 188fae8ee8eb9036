#include "pack.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "ggml_blocks.h"

namespace roost {
namespace {

void pack_float_rows(const Source& source, const uint8_t* src, int64_t rows, int64_t cols, uint8_t* dst) {
  const int64_t padded_cols = (cols + 1) / 2 * 2;
  const auto value_nbytes = static_cast<size_t>(source.block_nbytes);
  const bool has_pairs = source.format == WeightFormat::kBF16;
  std::memset(dst, 0, static_cast<size_t>(packed_nbytes(source.format, rows, cols)));
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t block = row / kBlockRows * padded_cols * kBlockRows;
    const int64_t lane = row % kBlockRows;
    for (int64_t k = 0; k < cols; ++k) {
      const int64_t at = has_pairs ? k / 2 * 2 * kBlockRows + 2 * lane + k % 2 : k * kBlockRows + lane;
      std::memcpy(dst + static_cast<size_t>(block + at) * value_nbytes,
                  src + static_cast<size_t>(row * cols + k) * value_nbytes, value_nbytes);
    }
  }
}

// A minimum may be larger than its scale, and f16 reaches 65,504: it does not count up to 2^14 times.
constexpr float kMinimumRoom = 16384.0f;

}  // namespace

std::optional<WeightFormat> format_of_ggml(int32_t ggml_type) {
  const Source* source = find_source(static_cast<GgmlType>(ggml_type));
  if (source == nullptr) return std::nullopt;
  return source->format;
}

int64_t source_block_cols(GgmlType type) { return source_of(type).block_cols; }

int64_t source_row_nbytes(GgmlType type, int64_t cols) {
  const Source& source = source_of(type);
  return cols / source.block_cols * source.block_nbytes;
}

int64_t packed_block_nbytes(WeightFormat format, int64_t cols) {
  if (!is_quantised(format)) {
    return (cols + 1) / 2 * 2 * kBlockRows * (format == WeightFormat::kF32 ? 4 : 2);
  }
  const Shape shape = shape_of(format);
  return (cols / kGroup * (shape.code_nbytes + shape.scale_nbytes) + 63) / 64 * 64;
}

int64_t packed_nbytes(WeightFormat format, int64_t rows, int64_t cols) {
  return (rows + kBlockRows - 1) / kBlockRows * packed_block_nbytes(format, cols);
}

float choose_scale(GgmlType type, const uint8_t* src, int64_t rows, int64_t cols) {
  const Source& source = source_of(type);
  if (source.block_cols != kSuperBlock) return 1.0f;
  const int64_t row_nbytes = source_row_nbytes(type, cols);
  const float second_weight = source.format == WeightFormat::kU6G16 ? 1.0f : 1.0f / kMinimumRoom;
  float largest = 0.0f;
  Group group{};
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t g = 0; g < cols / kGroup; ++g) {
      source.read(src + row * row_nbytes, g, group);
      largest = std::max({largest, std::fabs(group.scale), std::fabs(group.second) * second_weight});
    }
  }
  return power_above(largest);
}

void pack_rows(GgmlType type, const uint8_t* src, int64_t rows, int64_t cols, float scale, uint8_t* dst) {
  const Source& source = source_of(type);
  if (!is_quantised(source.format)) {
    pack_float_rows(source, src, rows, cols, dst);
    return;
  }
  const int64_t row_nbytes = source_row_nbytes(type, cols);
  pack_groups(source.format, rows, cols, scale, dst,
              [&](int64_t row, int64_t g, Group& group) { source.read(src + row * row_nbytes, g, group); });
}

float pack(GgmlType type, const uint8_t* src, int64_t rows, int64_t cols, uint8_t* dst) {
  const float scale = choose_scale(type, src, rows, cols);
  pack_rows(type, src, rows, cols, scale, dst);
  return scale;
}

}  // namespace roost
