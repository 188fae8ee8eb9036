#include "program_ops.h"

#include <algorithm>

namespace roost {
namespace {

// Rows per take: few enough that all threads get some, many enough that the counter is cheap.
int64_t row_chunk(int64_t num_rows, int num_threads) {
  return std::clamp<int64_t>(num_rows / (4 * num_threads), 1, 16);
}

template <class Body>
void for_rows(const OpContext& c, int64_t num_rows, Claims& claims, const Body& body) {
  const int64_t chunk = row_chunk(num_rows, c.program.pool().num_threads());
  for (int64_t begin; (begin = claims.take(chunk)) < num_rows;) {
    for (int64_t row = begin; row < std::min(begin + chunk, num_rows); ++row) body(row);
  }
}

template <class Body>
void for_rows(const OpContext& c, const Body& body) {
  for_rows(c, c.step.in->num_rows, *c.claims, body);
}

void quantise_row(const Program& p, const float* x, int64_t width, int64_t buffer, int64_t row) {
  p.kernels().linear->quantize_row(x, width, p.num_terms(buffer), p.quantised_row(buffer, width, row));
}

// A weight block is unpacked once for the rows of a tile; a tile's activations stay in L2.
constexpr int64_t kRowTile = 128;
// A take of weights at least this large is worth the counter.
constexpr int64_t kMinTakeBytes = 8192;
// From this many rows on a take is long, however few weights it has: many small takes end together.
constexpr int64_t kManyRows = 16;

struct MultiplyArgs {
  const SegmentedMatrix* matrix;
  BufferView x;       // buffer −1: no float segments
  int64_t quantised;  // −1: no quantised segments
  const float* bias;
  int64_t out;
  bool accumulate;
  float scale;
  int64_t num_rows;
};

void multiply_segment(const Program& p, const MultiplyArgs& a, size_t segment, int64_t row, int64_t num_rows,
                      int64_t block_begin, int64_t block_end) {
  PackedMatrix w = a.matrix->segments[segment];
  w.scale *= a.scale;
  const int64_t column = a.matrix->row_begin[segment];
  const Epilogue epilogue{a.bias == nullptr ? nullptr : a.bias + column, a.accumulate};
  float* y = p.row(a.out, row) + column;
  const LinearKernels& kernels = *p.kernels().linear;
  if (w.format <= WeightFormat::kBF16) {
    const float* x = p.row(a.x.buffer, row) + a.x.offset;
    kernels.linear_float(w, x, p.stride(a.x.buffer), num_rows, y, p.stride(a.out), block_begin, block_end, epilogue);
  } else {
    const QuantRows x{p.quantised_row(a.quantised, w.cols, row), w.cols, p.num_terms(a.quantised)};
    kernels.linear_quant(w, x, num_rows, y, p.stride(a.out), block_begin, block_end, epilogue);
  }
}

void multiply(const OpContext& c, const MultiplyArgs& a, Claims& claims) {
  const SegmentedMatrix& m = *a.matrix;
  const int64_t num_blocks = m.block_begin.back();
  const int64_t block_bytes = std::max<int64_t>(1, m.cols * kBlockRows / 2);
  const bool is_long = a.num_rows >= kManyRows;
  const int64_t even = num_blocks / ((is_long ? 16 : 4) * c.program.pool().num_threads());
  const int64_t worth = is_long ? 1 : std::min(num_blocks, (kMinTakeBytes + block_bytes - 1) / block_bytes);
  const int64_t take = std::max<int64_t>({1, even, worth});
  const int64_t per_tile = (num_blocks + take - 1) / take;
  const int64_t num_tiles = (a.num_rows + kRowTile - 1) / kRowTile;
  for (int64_t piece; (piece = claims.take(1)) < num_tiles * per_tile;) {
    const int64_t row = piece / per_tile * kRowTile;
    const int64_t num_rows = std::min(kRowTile, a.num_rows - row);
    const int64_t begin = piece % per_tile * take;
    const int64_t end = std::min(begin + take, num_blocks);
    for (size_t s = 0; s < m.segments.size(); ++s) {
      const int64_t low = std::max(begin, m.block_begin[s]) - m.block_begin[s];
      const int64_t high = std::min(end, m.block_begin[s + 1]) - m.block_begin[s];
      if (low < high) multiply_segment(c.program, a, s, row, num_rows, low, high);
    }
  }
}

}  // namespace

void EmbedOp::run(const OpContext& c) const {
  const Program& p = c.program;
  const SegmentedMatrix& table = p.matrix(table_);
  for_rows(c, [&](int64_t row) {
    const int64_t id = c.step.in->token_ids[row];
    size_t s = 0;
    while (s + 1 < table.segments.size() && id >= table.row_begin[s + 1]) ++s;
    float* to = p.row(out_, row);
    p.kernels().linear->dequantize_row(table.segments[s], id - table.row_begin[s], to);
    if (scale_ != 1.0f) p.kernels().ops->scale(to, scale_, to, table.cols);
  });
}

void NormOp::run(const OpContext& c) const {
  const Program& p = c.program;
  for_rows(c, [&](int64_t row) {
    float* to = out_ >= 0 ? p.row(out_, row) : p.scratch(c.thread);
    p.kernels().ops->rms_norm(p.row(x_.buffer, row) + x_.offset, p.vector(weight_), to, x_.width, eps_);
    if (quantised_ >= 0) quantise_row(p, to, x_.width, quantised_, row);
  });
}

void QuantiseOp::run(const OpContext& c) const {
  const Program& p = c.program;
  for_rows(c, [&](int64_t row) { quantise_row(p, p.row(x_.buffer, row) + x_.offset, x_.width, quantised_, row); });
}

void LinearOp::run(const OpContext& c) const {
  const Program& p = c.program;
  const float* bias = bias_ >= 0 ? p.vector(bias_) : nullptr;
  multiply(c, {&p.matrix(matrix_), x_, quantised_, bias, out_, accumulate_, 1.0f, c.step.in->num_rows}, *c.claims);
}

void HeadsOp::run(const OpContext& c) const {
  for_rows(c, [&](int64_t row) { one_row(c, row); });
}

void HeadsOp::one_row(const OpContext& c, int64_t row) const {
  const Program& p = c.program;
  const OpKernels& ops = *p.kernels().ops;
  const KvCache& kv = p.kv();
  const int64_t position = c.step.in->positions[row];
  for (const HeadsPart& part : parts_) {
    const int64_t num_heads = part.x.width / part.head_dim;
    const float* x = p.row(part.x.buffer, row) + part.x.offset;
    for (int64_t head = 0; head < num_heads; ++head) {
      const float* from = x + head * part.head_dim;
      float* normed = p.scratch(c.thread);
      float* rotated = normed + part.head_dim;
      if (part.norm >= 0) {
        ops.rms_norm(from, p.vector(part.norm), normed, part.head_dim, part.eps);
        from = normed;
      }
      if (part.rope >= 0) {
        const RopeTable& rope = p.rope(part.rope);
        ops.rope(from, rotated, rope.at(position), part.head_dim, rope.rotary_dim(), rope.style());
        from = rotated;
      }
      if (part.sink == Sink::kBuffer) {
        std::copy_n(from, part.head_dim, p.row(part.buffer, row) + head * part.head_dim);
        continue;
      }
      const bool is_k = part.sink == Sink::kK;
      const int64_t offset = is_k ? kv.k_offset(layer_, head) : kv.v_offset(layer_, head);
      uint8_t* page = kv.page(c.step.row_pages[static_cast<size_t>(row)]) + offset;
      const KvHeadPage to{page, part.head_dim, kv.type()};
      (is_k ? ops.store_k : ops.store_v)(from, to, position % kPageTokens);
    }
  }
}

AttentionTask AttentionOp::task(const OpContext& c, const AttentionPlan& plan, const AttentionPiece& piece,
                                int64_t kv_head) const {
  const Program& p = c.program;
  const KvCache& kv = p.kv();
  const int64_t first_column = kv_head * plan.group * kv.head_dim();
  const bool is_partial = piece.partial >= 0;
  AttentionTask t;
  t.q = p.row(q_, piece.row) + first_column;
  t.q_stride = p.stride(q_);
  t.out = is_partial ? nullptr : p.row(out_, piece.row) + first_column;
  t.out_stride = p.stride(out_);
  t.partial =
      is_partial ? const_cast<float*>(plan.partials.data()) + piece.partial + kv_head * piece.partial_stride : nullptr;
  t.num_rows = piece.num_rows;
  t.first_position = c.step.in->positions[piece.row];
  t.group = plan.group;
  t.head_dim = kv.head_dim();
  t.window = window_;
  t.scale = scale_;
  t.type = kv.type();
  t.k = kv.page(0) + kv.k_offset(layer_, kv_head);
  t.v = kv.page(0) + kv.v_offset(layer_, kv_head);
  t.page_stride = kv.page_bytes();
  t.pages = c.step.in->pages + c.step.in->page_offsets[piece.slice];
  t.split_begin = piece.split_begin;
  t.split_end = piece.split_end;
  t.scratch = p.scratch(c.thread);
  return t;
}

void AttentionOp::run(const OpContext& c) const {
  const Program& p = c.program;
  const int64_t num_kv_heads = p.kv().num_kv_heads();
  const AttentionPlan& plan = c.step.attention[static_cast<size_t>(p.plan_index(num_heads_ / num_kv_heads))];
  const auto num_pieces = static_cast<int64_t>(plan.pieces.size());
  for (int64_t i; (i = c.claims[0].take(1)) < num_pieces * num_kv_heads;) {
    // From the end: a slice's last rows see most, and the longest pieces should not start last.
    const AttentionPiece& piece = plan.pieces[static_cast<size_t>(num_pieces - 1 - i / num_kv_heads)];
    p.kernels().ops->attend(task(c, plan, piece, i % num_kv_heads));
  }
  if (plan.merges.empty()) return;
  p.pool().barrier(c.thread);
  const auto num_merges = static_cast<int64_t>(plan.merges.size());
  for (int64_t i; (i = c.claims[1].take(1)) < num_merges * num_kv_heads;) {
    const AttentionPiece& piece = plan.merges[static_cast<size_t>(i / num_kv_heads)];
    const int64_t kv_head = i % num_kv_heads;
    AttentionTask t = task(c, plan, piece, kv_head);
    t.out = p.row(out_, piece.row) + kv_head * plan.group * p.kv().head_dim();
    p.kernels().ops->merge(t);
  }
}

void GatedOp::run(const OpContext& c) const {
  const Program& p = c.program;
  // Columns are cut as well, so that one row keeps every thread busy; groups of 32 stay whole.
  constexpr int64_t kColumns = 512;
  const int64_t width = gate_.width;
  const int64_t per_row = quantised_ >= 0 || c.step.in->num_rows == 1 ? (width + kColumns - 1) / kColumns : 1;
  const int64_t columns = per_row == 1 ? width : kColumns;
  for_rows(c, c.step.in->num_rows * per_row, *c.claims, [&](int64_t piece) {
    const int64_t row = piece / per_row;
    const int64_t at = piece % per_row * columns;
    const int64_t n = std::min(columns, width - at);
    float* to = out_ >= 0 ? p.row(out_, row) + at : p.scratch(c.thread);
    p.kernels().ops->gated(p.row(gate_.buffer, row) + gate_.offset + at, p.row(up_.buffer, row) + up_.offset + at, to,
                           n, activation_);
    if (quantised_ < 0) return;
    const int num_terms = p.num_terms(quantised_);
    p.kernels().linear->quantize_row(to, n, num_terms,
                                     p.quantised_row(quantised_, width, row) + at / kGroup * num_terms);
  });
}

void AddOp::run(const OpContext& c) const {
  const Program& p = c.program;
  for_rows(c, [&](int64_t row) {
    p.kernels().ops->add(p.row(x_.buffer, row) + x_.offset, p.row(y_.buffer, row) + y_.offset, p.row(out_, row),
                         x_.width);
  });
}

void HeadOp::gather(const OpContext& c, int64_t begin, int64_t end, Claims& claims) const {
  const Program& p = c.program;
  for_rows(c, end - begin, claims, [&](int64_t i) {
    const float* x = p.row(x_.buffer, c.step.in->heads[begin + i].row) + x_.offset;
    float* to = p.row(buffers_.hidden, i);
    if (norm_ >= 0) {
      p.kernels().ops->rms_norm(x, p.vector(norm_), to, x_.width, eps_);
    } else {
      std::copy_n(x, x_.width, to);
    }
    if (buffers_.quantised >= 0) quantise_row(p, to, x_.width, buffers_.quantised, i);
  });
}

void HeadOp::sample(const OpContext& c, int64_t begin, int64_t end, Claims& claims) const {
  const Program& p = c.program;
  const StepResults& out = *c.step.out;
  for (int64_t i; (i = claims.take(1)) < end - begin;) {
    const int64_t at = begin + i;
    const RowResult result{out.token_ids + at,
                           out.logprobs + at,
                           out.top_ids + at * out.num_top,
                           out.top_logprobs + at * out.num_top,
                           out.picked_logprobs + out.picked_offsets[at],
                           out.faults + at};
    sample_row(*p.kernels().ops, p.row(buffers_.logits, i), p.vocab_size(), c.step.in->heads[at], c.step.in->pools,
               p.sampler_scratch(c.thread), result);
  }
}

void HeadOp::run(const OpContext& c) const {
  const Program& p = c.program;
  const int64_t total = c.step.in->num_heads;
  Claims* claims = c.claims;
  for (int64_t begin = 0; begin < total; begin += kHeadRows, claims += 3) {
    const int64_t end = std::min(begin + kHeadRows, total);
    if (begin > 0) p.pool().barrier(c.thread);
    gather(c, begin, end, claims[0]);
    p.pool().barrier(c.thread);
    const BufferView hidden{buffers_.hidden, 0, x_.width};
    multiply(c, {&p.matrix(matrix_), hidden, buffers_.quantised, nullptr, buffers_.logits, false, scale_, end - begin},
             claims[1]);
    p.pool().barrier(c.thread);
    sample(c, begin, end, claims[2]);
  }
}

}  // namespace roost
