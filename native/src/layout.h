// The layout of packed matrices: what the packer writes and the kernels stream.
//
// A matrix is a row of blocks, one for each 16 matrix rows (the last is padded with zeros).
//
// Quantised: a block is all codes of group 0, 1, … (32 inputs each), then all scales, padded to 64
// bytes. Lane = matrix row within the block; step s = inputs 4s … 4s + 3; byte 4 · lane + i of each
// 64 bytes belongs to input 4s + i.
//   4 bits and more: 4 × 64 bytes; the low nibbles of the j-th are step 2j, the high ones step 2j + 1
//   5 bits: 64 more bytes, bit s of each byte is the fifth bit for step s
//   6 bits: 2 × 64 more bytes, bits 2s, 2s + 1 of the first (steps 0–3) and the second (steps 4–7)
//   8 bits: 8 × 64 bytes, one for each step
// Scales of a group: 16 f16 scales; then 16 f16 minimums, or the 16 f16 scales of its second half.
//
// Float: a block is, for each input, 16 values; cols is padded to even with zeros. bf16 keeps the two
// values of an even and an odd input of a lane side by side.
#pragma once

#include "kernels.h"

namespace roost {

template <int kBitsOfCode, bool kHasMinimum, bool kScaleHalves>
struct QuantLayout {
  static constexpr int kBits = kBitsOfCode;
  static constexpr bool kMinimum = kHasMinimum;
  static constexpr bool kHalves = kScaleHalves;
  static constexpr int64_t kCodeBytes = 64 * kBits;
  static constexpr int64_t kScaleBytes = kMinimum || kHalves ? 64 : 32;
};

template <WeightFormat kFormat>
struct LayoutOf;
template <>
struct LayoutOf<WeightFormat::kU4M> : QuantLayout<4, true, false> {};
template <>
struct LayoutOf<WeightFormat::kU4> : QuantLayout<4, false, false> {};
template <>
struct LayoutOf<WeightFormat::kU5M> : QuantLayout<5, true, false> {};
template <>
struct LayoutOf<WeightFormat::kU5> : QuantLayout<5, false, false> {};
template <>
struct LayoutOf<WeightFormat::kU6G16> : QuantLayout<6, false, true> {};
template <>
struct LayoutOf<WeightFormat::kU8> : QuantLayout<8, false, false> {};

// Templates, not inline functions: those would be shared between instruction sets by the linker.
template <class Layout>
struct QuantBlock {
  int64_t num_groups;
  static constexpr int64_t nbytes(int64_t num_groups) {
    return (num_groups * (Layout::kCodeBytes + Layout::kScaleBytes) + 63) / 64 * 64;
  }
};

}  // namespace roost
