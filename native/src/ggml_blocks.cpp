#include "ggml_blocks.h"

#include <algorithm>
#include <cassert>
#include <cmath>

#include "half.h"
#include "layout.h"

namespace roost {
namespace {

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

template <WeightFormat kFormat>
constexpr Shape shape_of() {
  using Layout = LayoutOf<kFormat>;
  return {Layout::kBits, Layout::kCodeBytes, Layout::kScaleBytes};
}
}  // namespace

const Source* find_source(GgmlType type) {
  const auto* source = std::ranges::find(kSources, type, &Source::type);
  return source == kSources.end() ? nullptr : source;
}

const Source& source_of(GgmlType type) {
  const Source* source = find_source(type);
  assert(source != nullptr && "a type that format_of_ggml does not know");
  return *source;
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

float power_above(float largest) {
  if (largest == 0.0f || !std::isfinite(largest)) return 1.0f;
  int exponent;
  std::frexp(largest, &exponent);
  // The reciprocal must be a normal number too.
  return std::ldexp(1.0f, std::clamp(exponent, -100, 100));
}

}  // namespace roost
