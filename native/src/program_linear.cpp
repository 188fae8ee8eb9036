#include "program_linear.h"

#include <algorithm>

#include "pack.h"
#include "program_ops.h"

namespace roost {
namespace {

// A piece of weights at least this large is worth the counter.
constexpr int64_t kMinPieceBytes = 8192;
// Gate and up of so many blocks × rows wait in a thread's scratch: 64 KB, in L2.
constexpr int64_t kGatedBlockRows = 512;

void multiply_segment(const Program& p, const MultiplyArgs& a, size_t segment, int64_t row, int64_t num_rows,
                      int64_t block_begin, int64_t block_end) {
  PackedMatrix w = a.matrix->segments[segment];
  w.scale *= a.scale;
  const int64_t column = a.matrix->row_begin[segment];
  const Epilogue epilogue{a.bias == nullptr ? nullptr : a.bias + column, a.accumulate};
  float* y = a.y + row * a.y_stride + column;
  const LinearKernels& kernels = *p.kernels().linear;
  if (!is_quantised(w.format)) {
    const float* x = a.in.x + row * a.in.x_stride;
    kernels.linear_float(w, x, a.in.x_stride, num_rows, y, a.y_stride, block_begin, block_end, epilogue);
  } else {
    const QuantRows x{a.in.groups + row * (w.cols / kGroup * a.in.num_terms), w.cols, a.in.num_terms};
    kernels.linear_quant(w, x, num_rows, y, a.y_stride, block_begin, block_end, epilogue);
  }
}

int64_t weight_bytes(const SegmentedMatrix& m) {
  int64_t bytes = 0;
  for (const PackedMatrix& w : m.segments) bytes += packed_nbytes(w.format, w.rows, w.cols);
  return bytes;
}

}  // namespace

Activations activations_at(const Program& p, BufferView x, int64_t quantised, int64_t cols, int64_t row) {
  Activations in{nullptr, 0, nullptr, 1};
  if (x.buffer >= 0) {
    in.x = p.row(x.buffer, row) + x.offset;
    in.x_stride = p.stride(x.buffer);
  }
  if (quantised >= 0) {
    in.groups = p.quantised_row(quantised, cols, row);
    in.num_terms = p.num_terms(quantised);
  }
  return in;
}

void multiply_blocks(const Program& p, const MultiplyArgs& a, int64_t row, int64_t num_rows, int64_t begin,
                     int64_t end) {
  const SegmentedMatrix& m = *a.matrix;
  for (size_t s = 0; s < m.segments.size(); ++s) {
    const int64_t low = std::max(begin, m.block_begin[s]) - m.block_begin[s];
    const int64_t high = std::min(end, m.block_begin[s + 1]) - m.block_begin[s];
    if (low < high) multiply_segment(p, a, s, row, num_rows, low, high);
  }
}

Cuts::Cuts(int64_t num_blocks, int64_t unit, int64_t unit_bytes, int64_t most, int num_threads) {
  const int64_t num_units = (num_blocks + unit - 1) / unit;
  const int64_t worth = std::max<int64_t>(1, (kMinPieceBytes + unit_bytes - 1) / std::max<int64_t>(1, unit_bytes));
  const auto cut = [&](std::vector<int64_t>& cuts, int64_t rows, const auto& next) {
    const int64_t limit = std::max<int64_t>(1, most / rows);
    int64_t at = 0;
    for (cuts.push_back(0); at < num_units; cuts.push_back(std::min(at * unit, num_blocks))) {
      at += std::clamp<int64_t>(next(num_units - at), 1, std::min(limit, num_units - at));
    }
  };
  // Ever smaller ones, so that the threads end together; each is long while there is much left.
  cut(few_, kManyRows, [&](int64_t left) { return std::max(worth, left / (2 * num_threads)); });
  // Many small pieces end together, and each is long with so many rows.
  cut(many_, kRowTile, [&](int64_t) { return num_units / (16 * num_threads); });
}

Cuts cuts_of(const Program& program, const SegmentedMatrix& m) {
  const int64_t num_blocks = m.block_begin.back();
  return {num_blocks, 1, weight_bytes(m) / std::max<int64_t>(1, num_blocks), INT64_MAX, program.pool().num_threads()};
}

PhaseLabel linear_label(const SegmentedMatrix& m, const char* name) {
  return {std::string(name) + " " + std::to_string(m.rows) + "x" + std::to_string(m.cols), weight_bytes(m),
          m.rows * m.cols};
}

LinearOp::LinearOp(const Program& program, const LinearArgs& args, int64_t out, bool accumulate)
    : args_(args), out_(out), accumulate_(accumulate), cuts_(cuts_of(program, program.matrix(args.matrix))) {}

PhaseLabel LinearOp::label(const Program& p, int64_t) const { return linear_label(p.matrix(args_.matrix), "linear"); }

bool LinearOp::run(const OpContext& c) const {
  const Program& p = c.program;
  LazyInput input(c, args_);
  const MultiplyArgs a{&p.matrix(args_.matrix), input.activations(), input.bias(), p.row(out_, 0),
                       p.stride(out_),          accumulate_,         1.0f};
  return cuts_.share(c, 0, c.step.in->num_rows, [&](int64_t row, int64_t num_rows, int64_t begin, int64_t end) {
    input.make();
    multiply_blocks(p, a, row, num_rows, begin, end);
  });
}

LazyInput::LazyInput(const OpContext& context, const LinearArgs& args)
    : context_(context), args_(args), is_private_(args.norm != nullptr && args.norm->is_left_to_readers(context)) {}

Activations LazyInput::activations() const {
  const Program& p = context_.program;
  return activations_at(p, args_.x, args_.quantised, p.matrix(args_.matrix).cols, is_private_ ? context_.thread : 0);
}

const float* LazyInput::bias() const { return args_.bias >= 0 ? context_.program.vector(args_.bias) : nullptr; }

void LazyInput::make() {
  if (!is_private_ || is_made_) return;
  args_.norm->one_row(context_, 0, context_.thread);
  is_made_ = true;
}

GatedLinearOp::GatedLinearOp(const Program& program, const LinearArgs& args, Activation activation, int64_t out,
                             int64_t quantised)
    : args_(args),
      activation_(activation),
      out_(out),
      quantised_(quantised),
      half_blocks_(program.matrix(args.matrix).block_begin.back() / 2),
      cuts_(half_blocks_, kUnit, 2 * kUnit * weight_bytes(program.matrix(args.matrix)) / (2 * half_blocks_),
            kGatedBlockRows / kUnit, program.pool().num_threads()) {}

int64_t GatedLinearOp::scratch_floats() { return 2 * kGatedBlockRows * kBlockRows; }

PhaseLabel GatedLinearOp::label(const Program& p, int64_t) const {
  return linear_label(p.matrix(args_.matrix), "gated linear");
}

bool GatedLinearOp::run(const OpContext& c) const {
  const Program& p = c.program;
  LazyInput input(c, args_);
  MultiplyArgs a{&p.matrix(args_.matrix), input.activations(), input.bias(), nullptr, 0, false, 1.0f};
  return cuts_.share(c, 0, c.step.in->num_rows, [&](int64_t row, int64_t num_rows, int64_t begin, int64_t end) {
    input.make();
    const int64_t width = (end - begin) * kBlockRows;
    float* scratch = p.scratch(c.thread);
    // Rows of [gate | up], only of these columns: y is where column 0 of row 0 would be.
    a.y_stride = 2 * width;
    const auto place = [&](int64_t column) {
      const int64_t floats = column - row * a.y_stride;
      a.y =
          reinterpret_cast<float*>(reinterpret_cast<intptr_t>(scratch) + floats * static_cast<int64_t>(sizeof(float)));
    };
    place(-begin * kBlockRows);
    multiply_blocks(p, a, row, num_rows, begin, end);
    place(width - (half_blocks_ + begin) * kBlockRows);
    multiply_blocks(p, a, row, num_rows, half_blocks_ + begin, half_blocks_ + end);
    for (int64_t i = 0; i < num_rows; ++i) one_row(p, scratch + i * a.y_stride, row + i, begin * kBlockRows, width);
  });
}

void GatedLinearOp::one_row(const Program& p, float* gate, int64_t row, int64_t column, int64_t width) const {
  float* to = out_ >= 0 ? p.row(out_, row) + column : gate;
  p.kernels().ops->gated(gate, gate + width, to, width, activation_);
  if (quantised_ >= 0) quantise_columns(p, to, column, width, half_blocks_ * kBlockRows, quantised_, row);
}

}  // namespace roost
