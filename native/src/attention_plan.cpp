#include "attention_plan.h"

#include <algorithm>

#include "kernels.h"
#include "op_kernels.h"

namespace roost {
namespace {

constexpr int64_t kSplitPages = kSplitTokens / kPageTokens;
// So few that begin alike are not worth another meeting of the threads.
constexpr int64_t kMinFamily = 4;

// Slices of one row each, one after the other, whose contexts begin with the same pages.
struct Family {
  int64_t num_rows;
  int64_t num_splits;  // that are the same, whole, and before every row's own position
};

int64_t num_splits(const StepInputs& in, int64_t row, int64_t num_rows) {
  return (in.positions[row] + num_rows + kSplitTokens - 1) / kSplitTokens;
}

bool is_single(const StepInputs& in, int64_t slice) {
  return in.slice_offsets[slice + 1] - in.slice_offsets[slice] == 1;
}

int64_t num_whole_splits(const StepInputs& in, int64_t slice) {
  return in.positions[in.slice_offsets[slice]] / kSplitTokens;
}

// How many of the first splits of two slices are the same pages, at most `most`.
int64_t num_common_splits(const StepInputs& in, int64_t a, int64_t b, int64_t most) {
  most = std::min(most, num_whole_splits(in, b));
  const int32_t* pages_a = in.pages + in.page_offsets[a];
  const int32_t* pages_b = in.pages + in.page_offsets[b];
  return (std::mismatch(pages_a, pages_a + most * kSplitPages, pages_b).first - pages_a) / kSplitPages;
}

Family family_at(const StepInputs& in, int64_t slice, int64_t max_rows) {
  if (!is_single(in, slice)) return {1, 0};
  Family found{1, num_whole_splits(in, slice)};
  for (int64_t next = slice + 1; next < in.num_slices && found.num_rows < max_rows; ++next) {
    if (!is_single(in, next)) break;
    const int64_t common = num_common_splits(in, slice, next, found.num_splits);
    if (common == 0 || (found.num_rows > 1 && common < found.num_splits)) break;
    found.num_splits = common;
    ++found.num_rows;
  }
  return found.num_rows < kMinFamily ? Family{1, 0} : found;
}

class Planner {
 public:
  Planner(const StepInputs& in, const PlanShape& shape, AttentionPlan& plan) : in_(in), shape_(shape), plan_(plan) {}

  // The splits that a family shares are computed for all its rows at a time, so that each page is
  // read once for them; then each row's own splits; then the two are joined.
  void add_family(int64_t slice, const Family& family) {
    const int64_t state = plan_.group * (shape_.head_dim + 2);
    const int64_t stride = family.num_rows * state;
    const int64_t row = in_.slice_offsets[slice];
    int64_t most_splits = 0;
    for (int64_t i = 0; i < family.num_rows; ++i) most_splits = std::max(most_splits, num_splits(in_, row + i, 1));
    AttentionPiece piece{};
    piece.is_prepared = true;
    piece.partial_stride = most_splits * stride;
    piece.split_stride = stride;
    for (int64_t i = 0; i < family.num_rows; ++i) {
      piece.slice = slice + i;
      piece.row = row + i;
      piece.num_rows = 1;
      piece.first_position = in_.positions[row + i];
      piece.split_end = num_splits(in_, row + i, 1);
      piece.split_begin = family.num_splits;
      piece.partial = used_ + piece.split_begin * stride + i * state;
      plan_.pieces.push_back(piece);
      piece.split_begin = 0;
      piece.partial = used_ + i * state;
      plan_.merges.push_back(piece);
    }
    piece.slice = slice;
    piece.row = row;
    piece.num_rows = family.num_rows;
    for (int64_t split = 0; split < family.num_splits; ++split) {
      piece.first_position = (split + 1) * kSplitTokens;
      piece.split_begin = split;
      piece.split_end = split + 1;
      piece.partial = used_ + split * stride;
      plan_.pieces.push_back(piece);
    }
    used_ += shape_.num_kv_heads * piece.partial_stride;
  }

  void add_tiles(const std::vector<AttentionPiece>& tiles) {
    // Few tiles over a long context would leave threads without work: then splits are dealt out too.
    const int64_t enough = 4 * shape_.num_threads;
    const auto num_tasks = static_cast<int64_t>(tiles.size() + plan_.pieces.size()) * shape_.num_kv_heads;
    const bool is_cut = shape_.num_threads > 1 && num_tasks < enough;
    for (const AttentionPiece& tile : tiles) {
      if (is_cut && tile.split_end > 1) {
        cut(tile, std::max<int64_t>(1, tile.split_end / enough));
      } else {
        plan_.pieces.push_back(tile);
      }
    }
  }

  int64_t num_partial_floats() const { return used_; }

 private:
  void cut(const AttentionPiece& tile, int64_t step) {
    AttentionPiece whole = tile;
    whole.split_stride = tile.num_rows * plan_.group * (shape_.head_dim + 2);
    whole.partial = used_;
    whole.partial_stride = tile.split_end * whole.split_stride;
    for (int64_t split = 0; split < tile.split_end; split += step) {
      AttentionPiece piece = whole;
      piece.split_begin = split;
      piece.split_end = std::min(split + step, tile.split_end);
      piece.partial = used_ + split * whole.split_stride;
      plan_.pieces.push_back(piece);
    }
    plan_.merges.push_back(whole);
    used_ += shape_.num_kv_heads * whole.partial_stride;
  }

  const StepInputs& in_;
  const PlanShape& shape_;
  AttentionPlan& plan_;
  int64_t used_ = 0;
};

}  // namespace

void plan_attention(const StepInputs& in, AttentionKind kind, const PlanShape& shape, AttentionPlan& plan) {
  plan.group = kind.group;
  plan.pieces.clear();
  plan.merges.clear();
  Planner planner(in, shape, plan);
  const int64_t tile_rows = std::max<int64_t>(1, kTaskQueryRows / kind.group);
  std::vector<AttentionPiece> tiles;
  for (int64_t s = 0; s < in.num_slices;) {
    // Windows of different rows begin at different tokens.
    const Family family = kind.is_windowed ? Family{1, 0} : family_at(in, s, tile_rows);
    if (family.num_splits > 0) {
      planner.add_family(s, family);
      s += family.num_rows;
      continue;
    }
    for (int64_t row = in.slice_offsets[s]; row < in.slice_offsets[s + 1]; row += tile_rows) {
      AttentionPiece tile{};
      tile.slice = s;
      tile.row = row;
      tile.num_rows = std::min<int64_t>(tile_rows, in.slice_offsets[s + 1] - row);
      tile.first_position = in.positions[row];
      tile.split_end = num_splits(in, row, tile.num_rows);
      tile.is_prepared = !is_single(in, s);
      tile.partial = -1;
      tiles.push_back(tile);
    }
    ++s;
  }
  planner.add_tiles(tiles);
  const auto num_floats = static_cast<size_t>(planner.num_partial_floats());
  if (plan.partials.size() < num_floats) plan.partials.resize(num_floats);
}

}  // namespace roost
