// Reading the blocks of model files, one group of 32 at a time, and writing packed ones.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>

#include "kernels.h"
#include "pack.h"

namespace roost {

constexpr int64_t kSuperBlock = 256;  // values of a block of the K types

// One group of one matrix row, read from whatever it was stored as. Scales are not yet divided.
struct Group {
  std::array<uint8_t, kGroup> codes;
  float scale;   // of the group, or of its first half
  float second;  // its minimum, or the scale of its second half
};

// What is known of a file type: its blocks, what it becomes, and how a group is read.
struct Source {
  GgmlType type;
  WeightFormat format;
  int64_t block_cols;
  int64_t block_nbytes;
  void (*read)(const uint8_t* row, int64_t g, Group& group);
};
const Source& source_of(GgmlType type);
// Null for types that are not supported.
const Source* find_source(GgmlType type);

// How a packed format stores a group: the run-time face of LayoutOf.
struct Shape {
  int bits;
  int64_t code_nbytes;
  int64_t scale_nbytes;
};
Shape shape_of(WeightFormat format);

// Store `group` as lane `lane` of a packed group, its scales times `inverse_scale`. The bytes were zero.
void write_group(const Shape& shape, const Group& group, int64_t lane, float inverse_scale, uint8_t* codes,
                 uint8_t* scales);

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

inline uint16_t read_u16(const uint8_t* p) {
  uint16_t value;
  std::memcpy(&value, p, sizeof(value));
  return value;
}

// The power of two p with largest / p in [0.5, 1).
float power_above(float largest);

}  // namespace roost
