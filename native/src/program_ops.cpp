#include "program_ops.h"

#include <algorithm>

namespace roost {
namespace {

int64_t padded(int64_t width) { return (width + kBlockRows - 1) / kBlockRows * kBlockRows; }

template <class Body>
bool for_rows(const OpContext& c, int64_t phase, int64_t num_rows, const Body& body) {
  return c.share(phase, num_rows, row_chunk(c, num_rows), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) body(row);
  });
}

// A head of x, normalised and rotated as the part says: x itself, or in scratch [2 · head_dim].
const float* prepare(const Program& p, const HeadsPart& part, int64_t row, int64_t head, int64_t position,
                     float* scratch) {
  const OpKernels& ops = *p.kernels().ops;
  const float* from = p.row(part.x.buffer, row) + part.x.offset + head * part.head_dim;
  if (part.norm >= 0) {
    ops.rms_norm(from, p.vector(part.norm), scratch, part.head_dim, part.eps);
    from = scratch;
  }
  if (part.rope >= 0) {
    const RopeTable& rope = p.rope(part.rope);
    float* rotated = scratch + part.head_dim;
    ops.rope(from, rotated, rope.at(position), part.head_dim, rope.rotary_dim(), rope.style());
    from = rotated;
  }
  return from;
}

}  // namespace

int64_t row_chunk(const OpContext& c, int64_t num_rows) {
  return std::clamp<int64_t>(num_rows / (4 * c.program.pool().num_threads()), 1, 16);
}

void quantise_row(const Program& p, const float* x, int64_t width, int64_t buffer, int64_t row) {
  quantise_columns(p, x, 0, width, width, buffer, row);
}

void quantise_columns(const Program& p, const float* x, int64_t column, int64_t num_columns, int64_t width,
                      int64_t buffer, int64_t row) {
  const int num_terms = p.num_terms(buffer);
  QuantGroup* groups = p.quantised_row(buffer, width, row) + column / kGroup * num_terms;
  p.kernels().linear->quantize_row(x, num_columns, num_terms, groups);
}

PhaseLabel EmbedOp::label(const Program&, int64_t) const { return {"embed"}; }

bool EmbedOp::run(const OpContext& c) const {
  const Program& p = c.program;
  const SegmentedMatrix& table = p.matrix(table_);
  return for_rows(c, 0, c.step.in->num_rows, [&](int64_t row) {
    const int64_t id = c.step.in->token_ids[row];
    size_t s = 0;
    while (s + 1 < table.segments.size() && id >= table.row_begin[s + 1]) ++s;
    float* to = p.row(out_, row);
    p.kernels().linear->dequantize_row(table.segments[s], id - table.row_begin[s], to);
    if (scale_ != 1.0f) p.kernels().ops->scale(to, scale_, to, table.cols);
  });
}

PhaseLabel NormOp::label(const Program&, int64_t) const { return {"norm"}; }

bool NormOp::run(const OpContext& c) const {
  if (is_left_to_readers(c)) return true;
  return for_rows(c, 0, c.step.in->num_rows, [&](int64_t row) { one_row(c, row, row); });
}

void NormOp::one_row(const OpContext& c, int64_t row, int64_t to_row) const {
  const Program& p = c.program;
  float* to = out_ >= 0 ? p.row(out_, to_row) : p.scratch(c.thread);
  p.kernels().ops->rms_norm(p.row(x_.buffer, row) + x_.offset, p.vector(weight_), to, x_.width, eps_);
  if (quantised_ >= 0) quantise_row(p, to, x_.width, quantised_, to_row);
}

PhaseLabel QuantiseOp::label(const Program&, int64_t) const { return {"quantise"}; }

bool QuantiseOp::run(const OpContext& c) const {
  const Program& p = c.program;
  return for_rows(c, 0, c.step.in->num_rows,
                  [&](int64_t row) { quantise_row(p, p.row(x_.buffer, row) + x_.offset, x_.width, quantised_, row); });
}

PhaseLabel HeadsOp::label(const Program&, int64_t) const { return {"heads"}; }

bool HeadsOp::run(const OpContext& c) const {
  const Program& p = c.program;
  return for_rows(c, 0, c.step.in->num_rows, [&](int64_t row) {
    for (int64_t head = 0; head < part_.x.width / part_.head_dim; ++head) {
      const float* from = prepare(p, part_, row, head, c.step.in->positions[row], p.scratch(c.thread));
      std::copy_n(from, part_.head_dim, p.row(out_, row) + head * part_.head_dim);
    }
  });
}

int64_t AttentionOp::scratch_floats(int64_t group, int64_t head_dim) {
  return padded(attention_scratch_floats(group, head_dim)) + padded(group * head_dim) + 2 * head_dim;
}

PhaseLabel AttentionOp::label(const Program&, int64_t phase) const {
  return {phase == 0 ? "heads" : phase == 1 ? "attend" : "merge splits"};
}

AttentionTask AttentionOp::task(const OpContext& c, const AttentionPlan& plan, const AttentionPiece& piece,
                                int64_t kv_head) const {
  const Program& p = c.program;
  const KvCache& kv = p.kv();
  const int64_t first_column = kv_head * plan.group * kv.head_dim();
  const bool is_partial = piece.partial >= 0;
  AttentionTask t;
  t.q = p.row(rotated_, piece.row) + first_column;
  t.q_stride = p.stride(rotated_);
  t.out = is_partial ? nullptr : p.row(out_, piece.row) + first_column;
  t.out_stride = p.stride(out_);
  t.partial =
      is_partial ? const_cast<float*>(plan.partials.data()) + piece.partial + kv_head * piece.partial_stride : nullptr;
  t.split_stride = piece.split_stride;
  t.num_rows = piece.num_rows;
  t.first_position = piece.first_position;
  t.group = plan.group;
  t.head_dim = kv.head_dim();
  t.window = shape_.window;
  t.scale = shape_.scale;
  t.type = kv.type();
  t.k = kv.page(0) + kv.k_offset(shape_.layer, kv_head);
  t.v = kv.page(0) + kv.v_offset(shape_.layer, kv_head);
  t.page_stride = kv.page_bytes();
  t.pages = c.step.in->pages + c.step.in->page_offsets[piece.slice];
  t.split_begin = piece.split_begin;
  t.split_end = piece.split_end;
  t.scratch = p.scratch(c.thread);
  return t;
}

void AttentionOp::store(const OpContext& c, int64_t row, int64_t kv_head, float* scratch) const {
  const Program& p = c.program;
  const OpKernels& ops = *p.kernels().ops;
  const KvCache& kv = p.kv();
  const int64_t position = c.step.in->positions[row];
  const int64_t slot = position % kPageTokens;
  uint8_t* page = kv.page(c.step.row_pages[static_cast<size_t>(row)]);
  ops.store_k(prepare(p, parts_.k, row, kv_head, position, scratch),
              {page + kv.k_offset(shape_.layer, kv_head), kv.head_dim(), kv.type()}, slot);
  ops.store_v(prepare(p, parts_.v, row, kv_head, position, scratch),
              {page + kv.v_offset(shape_.layer, kv_head), kv.head_dim(), kv.type()}, slot);
}

void AttentionOp::prepare_queries(const OpContext& c, int64_t row, int64_t first_head, int64_t num_heads, float* to,
                                  float* scratch) const {
  const int64_t head_dim = c.program.kv().head_dim();
  const int64_t position = c.step.in->positions[row];
  for (int64_t i = 0; i < num_heads; ++i) {
    std::copy_n(prepare(c.program, parts_.q, row, first_head + i, position, scratch), head_dim, to + i * head_dim);
  }
}

void AttentionOp::prepare_row(const OpContext& c, int64_t row) const {
  const Program& p = c.program;
  float* scratch = p.scratch(c.thread);
  prepare_queries(c, row, 0, shape_.num_heads, p.row(rotated_, row), scratch);
  for (int64_t kv_head = 0; kv_head < p.kv().num_kv_heads(); ++kv_head) store(c, row, kv_head, scratch);
}

void AttentionOp::prepare_one(const OpContext& c, const AttentionPiece& piece, int64_t kv_head, float* q) const {
  const Program& p = c.program;
  const int64_t group = shape_.num_heads / p.kv().num_kv_heads();
  float* scratch = q + padded(group * p.kv().head_dim());
  prepare_queries(c, piece.row, kv_head * group, group, q, scratch);
  // Of the pieces of a context that is cut up, one reads this position.
  const int64_t split = c.step.in->positions[piece.row] / kSplitTokens;
  if (split >= piece.split_begin && split < piece.split_end) {
    store(c, piece.row, kv_head, scratch);
  }
}

void AttentionOp::attend(const OpContext& c, const AttentionPlan& plan, const AttentionPiece& piece,
                         int64_t kv_head) const {
  const Program& p = c.program;
  AttentionTask t = task(c, plan, piece, kv_head);
  if (!piece.is_prepared) {
    float* q = t.scratch + padded(attention_scratch_floats(plan.group, t.head_dim));
    prepare_one(c, piece, kv_head, q);
    t.q = q;
  }
  p.kernels().ops->attend(t);
  if (piece.partial < 0) quantise(p, piece, kv_head, plan.group * t.head_dim);
}

void AttentionOp::quantise(const Program& p, const AttentionPiece& piece, int64_t kv_head, int64_t width) const {
  if (quantised_ < 0) return;
  const int64_t column = kv_head * width;
  for (int64_t row = piece.row; row < piece.row + piece.num_rows; ++row) {
    quantise_columns(p, p.row(out_, row) + column, column, width, shape_.num_heads * p.kv().head_dim(), quantised_,
                     row);
  }
}

bool AttentionOp::run(const OpContext& c) const {
  const Program& p = c.program;
  const int64_t num_kv_heads = p.kv().num_kv_heads();
  const std::vector<int32_t>& rows = c.step.prepared_rows;
  if (!for_rows(c, 0, static_cast<int64_t>(rows.size()),
                [&](int64_t i) { prepare_row(c, rows[static_cast<size_t>(i)]); })) {
    return false;
  }
  const AttentionPlan& plan =
      c.step.attention[static_cast<size_t>(p.plan_index({shape_.num_heads / num_kv_heads, shape_.window > 0}))];
  const auto num_pieces = static_cast<int64_t>(plan.pieces.size());
  // From the end: a slice's last rows see most, and the longest pieces should not start last.
  if (!c.share(1, num_pieces * num_kv_heads, 1, [&](int64_t i, int64_t) {
        attend(c, plan, plan.pieces[static_cast<size_t>(num_pieces - 1 - i / num_kv_heads)], i % num_kv_heads);
      })) {
    return false;
  }
  const auto num_merges = static_cast<int64_t>(plan.merges.size());
  return c.share(2, num_merges * num_kv_heads, 1, [&](int64_t i, int64_t) {
    const AttentionPiece& piece = plan.merges[static_cast<size_t>(i / num_kv_heads)];
    const int64_t kv_head = i % num_kv_heads;
    AttentionTask t = task(c, plan, piece, kv_head);
    t.out = p.row(out_, piece.row) + kv_head * plan.group * t.head_dim;
    p.kernels().ops->merge(t);
    quantise(p, piece, kv_head, plan.group * t.head_dim);
  });
}

PhaseLabel GatedOp::label(const Program&, int64_t) const { return {"gated"}; }

bool GatedOp::run(const OpContext& c) const {
  const Program& p = c.program;
  // Columns are cut as well, so that one row keeps every thread busy; groups of 32 stay whole.
  constexpr int64_t kColumns = 512;
  const int64_t width = gate_.width;
  const int64_t per_row = quantised_ >= 0 || c.step.in->num_rows == 1 ? (width + kColumns - 1) / kColumns : 1;
  const int64_t columns = per_row == 1 ? width : kColumns;
  return for_rows(c, 0, c.step.in->num_rows * per_row, [&](int64_t piece) {
    const int64_t row = piece / per_row;
    const int64_t at = piece % per_row * columns;
    const int64_t n = std::min(columns, width - at);
    float* to = out_ >= 0 ? p.row(out_, row) + at : p.scratch(c.thread);
    p.kernels().ops->gated(p.row(gate_.buffer, row) + gate_.offset + at, p.row(up_.buffer, row) + up_.offset + at, to,
                           n, activation_);
    if (quantised_ >= 0) quantise_columns(p, to, at, n, width, quantised_, row);
  });
}

PhaseLabel AddOp::label(const Program&, int64_t) const { return {"add"}; }

bool AddOp::run(const OpContext& c) const {
  const Program& p = c.program;
  return for_rows(c, 0, c.step.in->num_rows, [&](int64_t row) {
    p.kernels().ops->add(p.row(x_.buffer, row) + x_.offset, p.row(y_.buffer, row) + y_.offset, p.row(out_, row),
                         x_.width);
  });
}

}  // namespace roost
