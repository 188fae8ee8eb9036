// The ops of a program. Each takes its work in pieces and calls the kernels; no arithmetic here.
#pragma once

#include <cstdint>
#include <vector>

#include "program.h"
#include "program_linear.h"

namespace roost {

class EmbedOp : public Op {
 public:
  EmbedOp(int64_t table, float scale, int64_t out) : table_(table), scale_(scale), out_(out) {}
  PhaseLabel label(const Program& program, int64_t phase) const override;
  bool run(const OpContext& context) const override;

 private:
  int64_t table_;
  float scale_;
  int64_t out_;
};

// is_for_next: only the linear that follows reads the result. Then a single row is left to it: each
// thread makes one of its own, which takes no longer, and nobody waits.
class NormOp : public Op {
 public:
  NormOp(BufferView x, int64_t weight, float eps, int64_t out, int64_t quantised, bool is_for_next)
      : x_(x), weight_(weight), eps_(eps), out_(out), quantised_(quantised), is_for_next_(is_for_next) {}
  PhaseLabel label(const Program& program, int64_t phase) const override;
  bool run(const OpContext& context) const override;

  bool is_for_next() const { return is_for_next_; }
  bool is_left_to_readers(const OpContext& context) const { return is_for_next_ && context.step.in->num_rows == 1; }
  // Row `row` of x → row `to` of the results.
  void one_row(const OpContext& context, int64_t row, int64_t to) const;

 private:
  BufferView x_;
  int64_t weight_;
  float eps_;
  int64_t out_, quantised_;
  bool is_for_next_;
};

class QuantiseOp : public Op {
 public:
  QuantiseOp(BufferView x, int64_t quantised) : x_(x), quantised_(quantised) {}
  PhaseLabel label(const Program& program, int64_t phase) const override;
  bool run(const OpContext& context) const override;

 private:
  BufferView x_;
  int64_t quantised_;
};

// What a linear op reads. norm: the op before it, if that is for this one only; else null.
struct LinearArgs {
  int64_t matrix;
  BufferView x;
  int64_t quantised, bias;
  const NormOp* norm;
};

// The rows that a linear op reads on one thread. A single one may have to be made there, once there
// is a piece to do: before that, who comes late may find what it is made of overwritten.
class LazyInput {
 public:
  LazyInput(const OpContext& context, const LinearArgs& args);
  Activations activations() const;
  const float* bias() const;
  void make();

 private:
  const OpContext& context_;
  const LinearArgs& args_;
  bool is_private_;
  bool is_made_ = false;
};

class LinearOp : public Op {
 public:
  LinearOp(const Program& program, const LinearArgs& args, int64_t out, bool accumulate);
  PhaseLabel label(const Program& program, int64_t phase) const override;
  bool run(const OpContext& context) const override;

 private:
  LinearArgs args_;
  int64_t out_;
  bool accumulate_;
  Cuts cuts_;
};

// activation(gate) · up, where gate is the first half of a linear's columns and up the second. Whoever
// has computed columns of both goes on with them at once, so neither is ever written to memory.
class GatedLinearOp : public Op {
 public:
  // Blocks that are quantised together: half a matrix consists of such.
  static constexpr int64_t kUnit = kGroup / kBlockRows;

  GatedLinearOp(const Program& program, const LinearArgs& args, Activation activation, int64_t out, int64_t quantised);
  static int64_t scratch_floats();
  PhaseLabel label(const Program& program, int64_t phase) const override;
  bool run(const OpContext& context) const override;

 private:
  void one_row(const Program& program, float* gate, int64_t row, int64_t column, int64_t width) const;

  LinearArgs args_;
  Activation activation_;
  int64_t out_, quantised_;
  int64_t half_blocks_;
  Cuts cuts_;
};

// Heads, normalised and rotated, to a buffer.
class HeadsOp : public Op {
 public:
  HeadsOp(HeadsPart part, int64_t out) : part_(part), out_(out) {}
  PhaseLabel label(const Program& program, int64_t phase) const override;
  bool run(const OpContext& context) const override;

 private:
  HeadsPart part_;
  int64_t out_;
};

// q, k and v are normalised and rotated, k and v written to the layer's pages, then rows attend. Of a
// sequence with several rows all k and v are written first; a single row needs nobody else's, so
// whoever attends does it on the way.
class AttentionOp : public Op {
 public:
  struct Parts {
    HeadsPart q, k, v;
  };
  struct Shape {
    int64_t layer, num_heads, window;
    float scale;
  };
  // rotated: a buffer for q. quantised: takes the result too, or −1.
  AttentionOp(const Parts& parts, const Shape& shape, int64_t rotated, int64_t out, int64_t quantised)
      : parts_(parts), shape_(shape), rotated_(rotated), out_(out), quantised_(quantised) {}
  static int64_t scratch_floats(int64_t group, int64_t head_dim);
  int64_t num_phases() const override { return 3; }
  PhaseLabel label(const Program& program, int64_t phase) const override;
  bool run(const OpContext& context) const override;

 private:
  void prepare_row(const OpContext& context, int64_t row) const;
  void prepare_one(const OpContext& context, const AttentionPiece& piece, int64_t kv_head, float* q) const;
  void store(const OpContext& context, int64_t row, int64_t kv_head, float* scratch) const;
  void attend(const OpContext& context, const AttentionPlan& plan, const AttentionPiece& piece, int64_t kv_head) const;
  // So many heads of q, prepared → `to`, one after another.
  void prepare_queries(const OpContext& context, int64_t row, int64_t first_head, int64_t num_heads, float* to,
                       float* scratch) const;
  void quantise(const Program& program, const AttentionPiece& piece, int64_t kv_head, int64_t width) const;
  AttentionTask task(const OpContext& context, const AttentionPlan& plan, const AttentionPiece& piece,
                     int64_t kv_head) const;

  Parts parts_;
  Shape shape_;
  int64_t rotated_, out_, quantised_;
};

class GatedOp : public Op {
 public:
  GatedOp(BufferView gate, BufferView up, Activation activation, int64_t out, int64_t quantised)
      : gate_(gate), up_(up), activation_(activation), out_(out), quantised_(quantised) {}
  PhaseLabel label(const Program& program, int64_t phase) const override;
  bool run(const OpContext& context) const override;

 private:
  BufferView gate_, up_;
  Activation activation_;
  int64_t out_, quantised_;
};

class AddOp : public Op {
 public:
  AddOp(BufferView x, BufferView y, int64_t out) : x_(x), y_(y), out_(out) {}
  PhaseLabel label(const Program& program, int64_t phase) const override;
  bool run(const OpContext& context) const override;

 private:
  BufferView x_, y_;
  int64_t out_;
};

// The end: wanted rows are gathered, normalised, multiplied and sampled, kHeadRows at a time, so
// that the logits of a long prompt never exist all at once. A single one each thread gathers for
// itself, see NormOp.
class HeadOp : public Op {
 public:
  static constexpr int64_t kHeadRows = 64;

  struct Norm {
    int64_t weight;  // or −1
    float eps;
  };
  struct Buffers {
    int64_t hidden, quantised, logits;
  };

  HeadOp(const Program& program, BufferView x, Norm norm, int64_t matrix, float scale, Buffers buffers);
  int64_t num_phases() const override { return 3 * max_chunks_; }
  PhaseLabel label(const Program& program, int64_t phase) const override;
  bool run(const OpContext& context) const override;

 private:
  void gather(const OpContext& context, int64_t head, int64_t to) const;
  void sample(const OpContext& context, int64_t head, int64_t logits_row) const;
  bool multiply(const OpContext& context, int64_t phase, int64_t begin, int64_t num_rows) const;

  BufferView x_;
  Norm norm_;
  int64_t matrix_;
  float scale_;
  Buffers buffers_;
  int64_t max_chunks_;
  Cuts cuts_;
};

// Rows per take: few enough that all threads get some, many enough that the counter is cheap.
int64_t row_chunk(const OpContext& context, int64_t num_rows);
void quantise_row(const Program& program, const float* x, int64_t width, int64_t buffer, int64_t row);
// Columns [column, column + num_columns) of a row `width` wide, whole groups of them: x is what they hold.
void quantise_columns(const Program& program, const float* x, int64_t column, int64_t num_columns, int64_t width,
                      int64_t buffer, int64_t row);

}  // namespace roost
