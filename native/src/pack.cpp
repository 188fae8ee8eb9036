#include "pack.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cassert>
#include <cmath>
#include <cstring>

#include "half.h"
#include "layout.h"

namespace roost {
namespace {

constexpr int64_t kSuperBlock = 256;  // values of a block of the K types

// One group of one matrix row, read from whatever it was stored as. Scales are not yet divided.
struct Group {
  std::array<uint8_t, kGroup> codes;
  float scale;   // of the group, or of its first half
  float second;  // its minimum, or the scale of its second half
};

uint16_t read_u16(const uint8_t* p) {
  uint16_t value;
  std::memcpy(&value, p, sizeof(value));
  return value;
}
uint32_t read_u32(const uint8_t* p) {
  uint32_t value;
  std::memcpy(&value, p, sizeof(value));
  return value;
}
float read_half(const uint8_t* p) { return half_to_float(read_u16(p)); }

// 16 bytes: input i in the low nibble of byte i, input i + 16 in its high nibble.
void read_nibbles(const uint8_t* p, Group& group) {
  for (size_t i = 0; i < 16; ++i) {
    group.codes[i] = p[i] & 0x0f;
    group.codes[i + 16] = p[i] >> 4;
  }
}
// Bit i of four bytes is the fifth bit of input i.
void read_fifth_bits(const uint8_t* p, Group& group) {
  const uint32_t bits = read_u32(p);
  for (size_t i = 0; i < 32; ++i) group.codes[i] = static_cast<uint8_t>(group.codes[i] | ((bits >> i) & 1u) << 4);
}

// Q4_0: f16 d · 16 bytes of nibbles; w = d (code − 8)
void read_q4_0(const uint8_t* row, int64_t g, Group& group) {
  const uint8_t* block = row + g * 18;
  group.scale = read_half(block);
  read_nibbles(block + 2, group);
}
// Q4_1: f16 d, f16 m · 16 bytes of nibbles; w = d code + m
void read_q4_1(const uint8_t* row, int64_t g, Group& group) {
  const uint8_t* block = row + g * 20;
  group.scale = read_half(block);
  group.second = -read_half(block + 2);
  read_nibbles(block + 4, group);
}
// Q5_0: f16 d · 4 bytes of fifth bits · 16 bytes of nibbles; w = d (code − 16)
void read_q5_0(const uint8_t* row, int64_t g, Group& group) {
  const uint8_t* block = row + g * 22;
  group.scale = read_half(block);
  read_nibbles(block + 6, group);
  read_fifth_bits(block + 2, group);
}
// Q5_1: f16 d, f16 m · 4 bytes of fifth bits · 16 bytes of nibbles; w = d code + m
void read_q5_1(const uint8_t* row, int64_t g, Group& group) {
  const uint8_t* block = row + g * 24;
  group.scale = read_half(block);
  group.second = -read_half(block + 2);
  read_nibbles(block + 8, group);
  read_fifth_bits(block + 4, group);
}
// Q8_0: f16 d · 32 signed bytes; w = d value
void read_q8_0(const uint8_t* row, int64_t g, Group& group) {
  const uint8_t* block = row + g * 34;
  group.scale = read_half(block);
  for (size_t i = 0; i < 32; ++i) group.codes[i] = block[2 + i] ^ 0x80;
}

// Q4_K and Q5_K: f16 d, f16 dmin · 12 bytes with eight 6-bit scales and eight 6-bit minimums.
// The first four of each are the low 6 bits of bytes 0–3 and 4–7; the last four have their low
// nibbles in bytes 8–11 and their top two bits in the top bits of the others.
void read_k_scale(const uint8_t* block, int64_t sub, Group& group) {
  const uint8_t* packed = block + 4;
  int scale;
  int minimum;
  if (sub < 4) {
    scale = packed[sub] & 63;
    minimum = packed[sub + 4] & 63;
  } else {
    scale = (packed[sub + 4] & 15) | (packed[sub - 4] >> 6) << 4;
    minimum = packed[sub + 4] >> 4 | (packed[sub] >> 6) << 4;
  }
  group.scale = read_half(block) * static_cast<float>(scale);
  group.second = read_half(block + 2) * static_cast<float>(minimum);
}
// 32 bytes serve two groups: low nibbles the even one, high nibbles the odd one.
void read_k_nibbles(const uint8_t* p, int64_t sub, Group& group) {
  const uint8_t* from = p + 32 * (sub / 2);
  const int shift = sub % 2 == 0 ? 0 : 4;
  for (size_t i = 0; i < 32; ++i) group.codes[i] = (from[i] >> shift) & 0x0f;
}
// Q4_K: header · 128 bytes of nibbles; w = (d scale) code − dmin minimum
void read_q4_k(const uint8_t* row, int64_t g, Group& group) {
  const uint8_t* block = row + g / 8 * 144;
  read_k_scale(block, g % 8, group);
  read_k_nibbles(block + 16, g % 8, group);
}
// Q5_K: header · 32 bytes of fifth bits (bit g of byte i: input i of group g) · 128 bytes of nibbles
void read_q5_k(const uint8_t* row, int64_t g, Group& group) {
  const uint8_t* block = row + g / 8 * 176;
  const int64_t sub = g % 8;
  read_k_scale(block, sub, group);
  read_k_nibbles(block + 48, sub, group);
  for (size_t i = 0; i < 32; ++i) {
    group.codes[i] = static_cast<uint8_t>(group.codes[i] | ((block[16 + i] >> sub) & 1) << 4);
  }
}
// Q6_K: 128 bytes of nibbles · 64 bytes of top bit pairs · 16 signed scales (16 inputs each) · f16 d;
// w = d scale (code − 32). Each half of 128 inputs: input i + 32 k has its nibble in byte
// i + 32 (k % 2) (low for k < 2, else high) and its top bits at 2 k of byte i of 32.
void read_q6_k(const uint8_t* row, int64_t g, Group& group) {
  const uint8_t* block = row + g / 8 * 210;
  const int64_t half = g % 8 / 4;
  const int64_t k = g % 4;
  const uint8_t* nibbles = block + 64 * half + 32 * (k % 2);
  const uint8_t* pairs = block + 128 + 32 * half;
  for (size_t i = 0; i < 32; ++i) {
    const int low = (nibbles[i] >> (k < 2 ? 0 : 4)) & 0x0f;
    const int high = (pairs[i] >> (2 * k)) & 3;
    group.codes[i] = static_cast<uint8_t>(low | high << 4);
  }
  const float d = read_half(block + 208);
  const uint8_t* scales = block + 192 + 2 * (g % 8);
  group.scale = d * static_cast<float>(static_cast<int8_t>(scales[0]));
  group.second = d * static_cast<float>(static_cast<int8_t>(scales[1]));
}

// What is known of a file type: its blocks, what it becomes, and how a group is read.
struct Source {
  GgmlType type;
  WeightFormat format;
  int64_t block_cols;
  int64_t block_nbytes;
  void (*read)(const uint8_t* row, int64_t g, Group& group);
};
constexpr std::array kSources = {
    Source{GgmlType::kF32, WeightFormat::kF32, 1, 4, nullptr},
    Source{GgmlType::kF16, WeightFormat::kF16, 1, 2, nullptr},
    Source{GgmlType::kBF16, WeightFormat::kBF16, 1, 2, nullptr},
    Source{GgmlType::kQ4_0, WeightFormat::kU4, 32, 18, read_q4_0},
    Source{GgmlType::kQ4_1, WeightFormat::kU4M, 32, 20, read_q4_1},
    Source{GgmlType::kQ5_0, WeightFormat::kU5, 32, 22, read_q5_0},
    Source{GgmlType::kQ5_1, WeightFormat::kU5M, 32, 24, read_q5_1},
    Source{GgmlType::kQ8_0, WeightFormat::kU8, 32, 34, read_q8_0},
    Source{GgmlType::kQ4_K, WeightFormat::kU4M, kSuperBlock, 144, read_q4_k},
    Source{GgmlType::kQ5_K, WeightFormat::kU5M, kSuperBlock, 176, read_q5_k},
    Source{GgmlType::kQ6_K, WeightFormat::kU6G16, kSuperBlock, 210, read_q6_k},
};

const Source& source_of(GgmlType type) {
  const auto* source = std::ranges::find(kSources, type, &Source::type);
  assert(source != kSources.end() && "a type that format_of_ggml does not know");
  return *source;
}

// How a packed format stores a group: the run-time face of LayoutOf.
struct Shape {
  int bits;
  int64_t code_nbytes;
  int64_t scale_nbytes;
};
template <WeightFormat kFormat>
constexpr Shape shape_of() {
  using Layout = LayoutOf<kFormat>;
  return {Layout::kBits, Layout::kCodeBytes, Layout::kScaleBytes};
}
Shape shape_of(WeightFormat format) {
  switch (format) {
    case WeightFormat::kU4M:
      return shape_of<WeightFormat::kU4M>();
    case WeightFormat::kU4:
      return shape_of<WeightFormat::kU4>();
    case WeightFormat::kU5M:
      return shape_of<WeightFormat::kU5M>();
    case WeightFormat::kU5:
      return shape_of<WeightFormat::kU5>();
    case WeightFormat::kU6G16:
      return shape_of<WeightFormat::kU6G16>();
    case WeightFormat::kU8:
      return shape_of<WeightFormat::kU8>();
    case WeightFormat::kF32:
    case WeightFormat::kF16:
    case WeightFormat::kBF16:
      break;
  }
  assert(false && "a float format has no groups");
  return {};
}

// Store `group` as lane `lane` of a packed group, its scales times `inverse_scale`. The bytes were zero.
void write_group(const Shape& shape, const Group& group, int64_t lane, float inverse_scale, uint8_t* codes,
                 uint8_t* scales) {
  for (int64_t k = 0; k < kGroup; ++k) {
    const int64_t step = k / 4;
    const int64_t byte = 4 * lane + k % 4;
    const unsigned code = group.codes[static_cast<size_t>(k)];
    const auto put = [&](int64_t at, unsigned bits) { codes[at] = static_cast<uint8_t>(codes[at] | bits); };
    if (shape.bits == 8) {
      codes[64 * step + byte] = static_cast<uint8_t>(code);
      continue;
    }
    put(64 * (step / 2) + byte, (code & 0x0f) << (4 * (step % 2)));
    if (shape.bits == 5) put(256 + byte, (code >> 4) << step);
    if (shape.bits == 6) put(256 + 64 * (step / 4) + byte, (code >> 4) << (2 * (step % 4)));
  }
  const auto put_scale = [&](int64_t index, float value) {
    const uint16_t bits = float_to_half(value * inverse_scale);
    std::memcpy(scales + 2 * (index * kBlockRows + lane), &bits, sizeof(bits));
  };
  put_scale(0, group.scale);
  if (shape.scale_nbytes == 64) put_scale(1, group.second);
}

// Packs rows whose groups `read(row, g, group)` gives.
template <class Read>
void pack_groups(WeightFormat format, int64_t rows, int64_t cols, float scale, uint8_t* dst, const Read& read) {
  const Shape shape = shape_of(format);
  const int64_t num_groups = cols / kGroup;
  const int64_t block_nbytes = packed_block_nbytes(format, cols);
  std::memset(dst, 0, static_cast<size_t>(packed_nbytes(format, rows, cols)));
  Group group{};
  for (int64_t row = 0; row < rows; ++row) {
    uint8_t* codes = dst + row / kBlockRows * block_nbytes;
    uint8_t* scales = codes + num_groups * shape.code_nbytes;
    for (int64_t g = 0; g < num_groups; ++g, codes += shape.code_nbytes, scales += shape.scale_nbytes) {
      read(row, g, group);
      write_group(shape, group, row % kBlockRows, 1.0f / scale, codes, scales);
    }
  }
}

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

// The power of two p with largest / p in [0.5, 1).
float power_above(float largest) {
  if (largest == 0.0f || !std::isfinite(largest)) return 1.0f;
  int exponent;
  std::frexp(largest, &exponent);
  // The reciprocal must be a normal number too.
  return std::ldexp(1.0f, std::clamp(exponent, -100, 100));
}

// A minimum may be larger than its scale, and f16 reaches 65,504: it does not count up to 2^14 times.
constexpr float kMinimumRoom = 16384.0f;

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

uint8_t nearest_code(float value, float scale, float offset, float max_code) {
  if (scale == 0.0f) return static_cast<uint8_t>(std::nearbyint(std::clamp(offset, 0.0f, max_code)));
  return static_cast<uint8_t>(std::clamp(std::nearbyint(value / scale + offset), 0.0f, max_code));
}

// 8 bits: codes against the scale as it will be stored, so that its rounding costs nothing.
void quantise_8(const std::array<float, kGroup>& x, float matrix_scale, Group& group) {
  float largest = 0.0f;
  for (const float v : x) largest = std::max(largest, std::fabs(v));
  group.scale = stored_scale(largest / 127.0f, matrix_scale);
  for (size_t i = 0; i < x.size(); ++i) group.codes[i] = nearest_code(x[i], group.scale, 128.0f, 255.0f);
}

// Codes for given scale and minimum (as stored), and the squared error they leave.
double assign_4(const std::array<float, kGroup>& x, Group& group) {
  double error = 0.0;
  for (size_t i = 0; i < x.size(); ++i) {
    group.codes[i] = nearest_code(x[i] + group.second, group.scale, 0.0f, 15.0f);
    const double left = static_cast<double>(group.scale) * group.codes[i] - static_cast<double>(group.second) - x[i];
    error += left * left;
  }
  return error;
}

// The line that fits the group's codes best by least squares: x ≈ scale · code − minimum.
bool refit_4(const std::array<float, kGroup>& x, float matrix_scale, Group& group) {
  double sum_code = 0;
  double sum_x = 0;
  double sum_code_code = 0;
  double sum_code_x = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    const double code = group.codes[i];
    sum_code += code;
    sum_x += x[i];
    sum_code_code += code * code;
    sum_code_x += code * x[i];
  }
  const double n = kGroup;
  const double determinant = n * sum_code_code - sum_code * sum_code;
  if (determinant <= 0) return false;
  const double slope = (n * sum_code_x - sum_code * sum_x) / determinant;
  const double minimum = (slope * sum_code - sum_x) / n;
  group.scale = stored_scale(static_cast<float>(slope), matrix_scale);
  group.second = stored_scale(static_cast<float>(minimum), matrix_scale);
  return group.scale > 0.0f;
}

// 4 bits with a minimum: start from the range, and from ranges a little narrower (one outlier then
// costs its neighbours less), refit the line to the codes while that helps, and keep the best.
void quantise_4(const std::array<float, kGroup>& x, float matrix_scale, Group& best) {
  const auto [low, high] = std::ranges::minmax(x);
  double best_error = HUGE_VAL;
  for (const float shrink : {1.0f, 0.93f, 0.86f, 0.79f}) {
    Group trial{};
    const float middle = 0.5f * (low + high);
    const float reach = 0.5f * (high - low) * shrink;
    trial.scale = stored_scale(2.0f * reach / 15.0f, matrix_scale);
    trial.second = stored_scale(reach - middle, matrix_scale);
    for (int round = 0; round < 4; ++round) {
      const double error = assign_4(x, trial);
      if (error >= best_error) break;
      best_error = error;
      best = trial;
      if (!refit_4(x, matrix_scale, trial)) break;
    }
  }
}

}  // namespace

std::optional<WeightFormat> format_of_ggml(int32_t ggml_type) {
  const auto* source = std::ranges::find(kSources, static_cast<GgmlType>(ggml_type), &Source::type);
  if (source == kSources.end()) return std::nullopt;
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

void quantise_rows(GgmlType type, const uint8_t* src, int64_t rows, int64_t cols, int bits, float scale,
                   uint8_t* dst) {
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
