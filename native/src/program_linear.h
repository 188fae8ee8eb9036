// A matrix times the rows of a step, cut into pieces for the threads.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "program.h"

namespace roost {

// Rows of activations from `row` on; a matrix whose segments are of both kinds takes both.
struct Activations {
  const float* x;  // or null: no float segments
  int64_t x_stride;
  const QuantGroup* groups;  // or null: no quantised segments
  int num_terms;
};

struct MultiplyArgs {
  const SegmentedMatrix* matrix;
  Activations in;
  const float* bias;  // or null
  float* y;
  int64_t y_stride;
  bool accumulate;
  float scale;
};

// Rows `row` and on of an f32 buffer (columns of a view) and of a quantised one; −1: none.
Activations activations_at(const Program& program, BufferView x, int64_t quantised, int64_t cols, int64_t row);

// Blocks [block_begin, block_end) for rows [row, row + num_rows).
void multiply_blocks(const Program& program, const MultiplyArgs& args, int64_t row, int64_t num_rows,
                     int64_t block_begin, int64_t block_end);

// How blocks are cut into pieces: [begin[i], begin[i + 1]). Fixed when recorded.
class Cuts {
 public:
  // unit: pieces are multiples of it; so many bytes have a unit's weights; most: units of a piece.
  Cuts(int64_t num_blocks, int64_t unit, int64_t unit_bytes, int64_t most, int num_threads);

  // A weight block is unpacked once for the rows of a tile; a tile's activations stay in L2.
  static constexpr int64_t kRowTile = 128;
  // From this many rows on a piece is long, however few weights it has.
  static constexpr int64_t kManyRows = 16;

  // Shares phase `phase` of an op: body(row, num_rows, block_begin, block_end) for tiles of rows.
  template <class Body>
  bool share(const OpContext& context, int64_t phase, int64_t num_rows, const Body& body) const;

 private:
  std::vector<int64_t> few_, many_;
};

template <class Body>
bool Cuts::share(const OpContext& c, int64_t phase, int64_t total_rows, const Body& body) const {
  const std::vector<int64_t>& cuts = total_rows < kManyRows ? few_ : many_;
  const auto per_tile = static_cast<int64_t>(cuts.size()) - 1;
  const int64_t num_tiles = (total_rows + kRowTile - 1) / kRowTile;
  return c.share(phase, num_tiles * per_tile, 1, [&](int64_t piece, int64_t) {
    const int64_t row = piece / per_tile * kRowTile;
    const int64_t num_rows = total_rows - row < kRowTile ? total_rows - row : kRowTile;
    const auto i = static_cast<size_t>(piece % per_tile);
    body(row, num_rows, cuts[i], cuts[i + 1]);
  });
}

Cuts cuts_of(const Program& program, const SegmentedMatrix& matrix);
PhaseLabel linear_label(const SegmentedMatrix& matrix, const char* name);

}  // namespace roost
