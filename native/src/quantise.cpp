// Float matrices → 4 or 8 bits, on load.
#include <algorithm>
#include <array>
#include <cassert>
#include <cmath>
#include <cstring>

#include "ggml_blocks.h"
#include "half.h"
#include "pack.h"

namespace roost {
namespace {

// A row of a float type as f32.
void read_floats(GgmlType type, const uint8_t* row, int64_t begin, std::array<float, kGroup>& out) {
  for (int64_t i = 0; i < kGroup; ++i) {
    const int64_t k = begin + i;
    float& value = out[static_cast<size_t>(i)];
    if (type == GgmlType::kF32) {
      std::memcpy(&value, row + 4 * k, sizeof(value));
    } else {
      value = type == GgmlType::kF16 ? half_to_float(read_u16(row + 2 * k)) : brain_to_float(read_u16(row + 2 * k));
    }
  }
}

float stored_scale(float value, float scale) { return half_to_float(float_to_half(value / scale)) * scale; }

// To nearest even, for |x| < 2^22: the sum with 1.5 · 2^23 has no room for a fraction. std::nearbyint
// is a call on processors without SSE4.1, which this file must run on.
float nearest(float x) { return x + 12582912.0f - 12582912.0f; }

float reciprocal(float scale) { return scale == 0.0f ? 0.0f : 1.0f / scale; }

// 8 bits: codes against the scale as it will be stored, so that its rounding costs nothing.
void quantise_8(const std::array<float, kGroup>& x, float matrix_scale, Group& group) {
  float largest = 0.0f;
  for (const float v : x) largest = std::max(largest, std::fabs(v));
  group.scale = stored_scale(largest / 127.0f, matrix_scale);
  const float inverse = reciprocal(group.scale);
  for (size_t i = 0; i < x.size(); ++i) {
    group.codes[i] = static_cast<uint8_t>(nearest(std::clamp(x[i] * inverse + 128.0f, 0.0f, 255.0f)));
  }
}

// Codes for given scale and minimum (as stored), and the squared error they leave.
float assign_4(const std::array<float, kGroup>& x, Group& group) {
  const float inverse = reciprocal(group.scale);
  std::array<float, kGroup> left;
  for (size_t i = 0; i < x.size(); ++i) {
    const float code = nearest(std::clamp((x[i] + group.second) * inverse, 0.0f, 15.0f));
    group.codes[i] = static_cast<uint8_t>(code);
    left[i] = group.scale * code - group.second - x[i];
  }
  float error = 0.0f;
  for (const float v : left) error += v * v;
  return error;
}

// The line that fits the group's codes best by least squares: x ≈ scale · code − minimum.
bool refit_4(const std::array<float, kGroup>& x, float matrix_scale, Group& group) {
  float sum_code = 0;
  float sum_x = 0;
  float sum_code_code = 0;
  float sum_code_x = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    const float code = group.codes[i];
    sum_code += code;
    sum_x += x[i];
    sum_code_code += code * code;
    sum_code_x += code * x[i];
  }
  const float n = kGroup;
  const float determinant = n * sum_code_code - sum_code * sum_code;
  if (determinant <= 0) return false;
  const float slope = (n * sum_code_x - sum_code * sum_x) / determinant;
  const float minimum = (slope * sum_code - sum_x) / n;
  group.scale = stored_scale(slope, matrix_scale);
  group.second = stored_scale(minimum, matrix_scale);
  return group.scale > 0.0f;
}

// 4 bits with a minimum: start from the range, and from ranges a little narrower (one outlier then
// costs its neighbours less), refit the line to the codes while that helps, and keep the best.
void quantise_4(const std::array<float, kGroup>& x, float matrix_scale, Group& best) {
  const auto [low, high] = std::ranges::minmax(x);
  float best_error = HUGE_VALF;
  for (const float shrink : {1.0f, 0.93f, 0.86f, 0.79f}) {
    Group trial{};
    const float middle = 0.5f * (low + high);
    const float reach = 0.5f * (high - low) * shrink;
    trial.scale = stored_scale(2.0f * reach / 15.0f, matrix_scale);
    trial.second = stored_scale(reach - middle, matrix_scale);
    for (int round = 0; round < 4; ++round) {
      const float error = assign_4(x, trial);
      if (error >= best_error) break;
      best_error = error;
      best = trial;
      if (!refit_4(x, matrix_scale, trial)) break;
    }
  }
}

}  // namespace

WeightFormat quantised_format(int bits) {
  assert((bits == 4 || bits == 8) && "weights are quantised to 4 or 8 bits");
  return bits == 4 ? WeightFormat::kU4M : WeightFormat::kU8;
}

float choose_quantised_scale(GgmlType type, const uint8_t* src, int64_t rows, int64_t cols, int bits) {
  const int64_t row_nbytes = source_row_nbytes(type, cols);
  float largest = 0.0f;
  std::array<float, kGroup> x;
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t k = 0; k < cols; k += kGroup) {
      read_floats(type, src + row * row_nbytes, k, x);
      for (const float v : x) largest = std::max(largest, std::fabs(v));
    }
  }
  return power_above(largest * 2.0f / (bits == 4 ? 15.0f : 254.0f));
}

void quantise_rows(GgmlType type, const uint8_t* src, int64_t rows, int64_t cols, int bits, float scale, uint8_t* dst) {
  const int64_t row_nbytes = source_row_nbytes(type, cols);
  std::array<float, kGroup> x;
  pack_groups(quantised_format(bits), rows, cols, scale, dst, [&](int64_t row, int64_t g, Group& group) {
    read_floats(type, src + row * row_nbytes, g * kGroup, x);
    if (bits == 8) {
      quantise_8(x, scale, group);
    } else {
      quantise_4(x, scale, group);
    }
  });
}

}  // namespace roost
