#include "attention_plan.h"

#include <algorithm>

#include "kernels.h"
#include "op_kernels.h"

namespace roost {
namespace {

int64_t num_splits(const StepInputs& in, int64_t row, int64_t num_rows) {
  return (in.positions[row] + num_rows + kSplitTokens - 1) / kSplitTokens;
}

}  // namespace

void plan_attention(const StepInputs& in, int64_t group, const PlanShape& shape, AttentionPlan& plan) {
  plan.group = group;
  plan.pieces.clear();
  plan.merges.clear();
  const int64_t tile_rows = std::max<int64_t>(1, kTaskQueryRows / group);
  std::vector<AttentionPiece> tiles;
  for (int64_t s = 0; s < in.num_slices; ++s) {
    for (int64_t row = in.slice_offsets[s]; row < in.slice_offsets[s + 1]; row += tile_rows) {
      const int64_t rows = std::min<int64_t>(tile_rows, in.slice_offsets[s + 1] - row);
      tiles.push_back({s, row, rows, 0, num_splits(in, row, rows), -1, 0});
    }
  }
  // Few tiles over a long context would leave threads without work: then splits are dealt out too.
  const auto num_tasks = static_cast<int64_t>(tiles.size()) * shape.num_kv_heads;
  const int64_t enough = 4 * shape.num_threads;
  if (shape.num_threads == 1 || num_tasks >= enough) {
    plan.pieces = std::move(tiles);
    return;
  }
  int64_t used = 0;
  for (const AttentionPiece& tile : tiles) {
    const int64_t splits = tile.split_end;
    if (splits == 1) {
      plan.pieces.push_back(tile);
      continue;
    }
    const int64_t state = tile.num_rows * group * (shape.head_dim + 2);
    const int64_t step = std::max<int64_t>(1, splits / enough);
    AttentionPiece whole = tile;
    whole.partial = used;
    whole.partial_stride = splits * state;
    for (int64_t split = 0; split < splits; split += step) {
      AttentionPiece piece = whole;
      piece.split_begin = split;
      piece.split_end = std::min(split + step, splits);
      piece.partial = used + split * state;
      plan.pieces.push_back(piece);
    }
    plan.merges.push_back(whole);
    used += shape.num_kv_heads * whole.partial_stride;
  }
  if (static_cast<int64_t>(plan.partials.size()) < used) plan.partials.resize(static_cast<size_t>(used));
}

}  // namespace roost
