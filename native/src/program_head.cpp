#include <algorithm>

#include "program_ops.h"

namespace roost {

HeadOp::HeadOp(const Program& program, BufferView x, Norm norm, int64_t matrix, float scale, Buffers buffers)
    : x_(x),
      norm_(norm),
      matrix_(matrix),
      scale_(scale),
      buffers_(buffers),
      max_chunks_((program.limits().max_logits_rows + kHeadRows - 1) / kHeadRows),
      cuts_(cuts_of(program, program.matrix(matrix))) {}

PhaseLabel HeadOp::label(const Program& p, int64_t phase) const {
  if (phase % 3 == 1) return linear_label(p.matrix(matrix_), "logits");
  return {phase % 3 == 0 ? "gather" : "sample"};
}

void HeadOp::gather(const OpContext& c, int64_t head, int64_t to_row) const {
  const Program& p = c.program;
  const float* x = p.row(x_.buffer, c.step.in->heads[head].row) + x_.offset;
  float* to = p.row(buffers_.hidden, to_row);
  if (norm_.weight >= 0) {
    p.kernels().ops->rms_norm(x, p.vector(norm_.weight), to, x_.width, norm_.eps);
  } else {
    std::copy_n(x, x_.width, to);
  }
  if (buffers_.quantised >= 0) quantise_row(p, to, x_.width, buffers_.quantised, to_row);
}

bool HeadOp::multiply(const OpContext& c, int64_t phase, int64_t begin, int64_t total_rows) const {
  const Program& p = c.program;
  const bool is_private = total_rows == 1;
  const BufferView hidden{buffers_.hidden, 0, x_.width};
  const Activations in = activations_at(p, hidden, buffers_.quantised, x_.width, is_private ? c.thread : 0);
  const MultiplyArgs a{&p.matrix(matrix_),        in,    nullptr, p.row(buffers_.logits, 0),
                       p.stride(buffers_.logits), false, scale_};
  bool is_made = !is_private;
  return cuts_.share(c, phase, total_rows, [&](int64_t row, int64_t num_rows, int64_t low, int64_t high) {
    if (!is_made) gather(c, begin, c.thread);
    is_made = true;
    multiply_blocks(p, a, row, num_rows, low, high);
  });
}

void HeadOp::sample(const OpContext& c, int64_t head, int64_t logits_row) const {
  const Program& p = c.program;
  const StepResults& out = *c.step.out;
  const RowResult result{out.token_ids + head,
                         out.logprobs + head,
                         out.top_ids + head * out.num_top,
                         out.top_logprobs + head * out.num_top,
                         out.picked_logprobs + out.picked_offsets[head],
                         out.faults + head};
  sample_row(*p.kernels().ops, p.row(buffers_.logits, logits_row), p.vocab_size(), c.step.in->heads[head],
             c.step.in->pools, p.sampler_scratch(c.thread), result);
}

bool HeadOp::run(const OpContext& c) const {
  const int64_t total = c.step.in->num_heads;
  int64_t phase = 0;
  for (int64_t begin = 0; begin < total; begin += kHeadRows, phase += 3) {
    const int64_t num_rows = std::min(kHeadRows, total - begin);
    const int64_t to_gather = num_rows == 1 ? 0 : num_rows;
    const bool goes_on = c.share(phase, to_gather, 1, [&](int64_t i, int64_t) { gather(c, begin + i, i); }) &&
                         multiply(c, phase + 1, begin, num_rows) &&
                         c.share(phase + 2, num_rows, 1, [&](int64_t i, int64_t) { sample(c, begin + i, i); });
    if (!goes_on) return false;
  }
  return true;
}

}  // namespace roost
