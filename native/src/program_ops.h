// The ops of a program. Each takes its work in pieces and calls the kernels; no arithmetic here.
#pragma once

#include <cstdint>
#include <vector>

#include "program.h"

namespace roost {

class EmbedOp : public Op {
 public:
  EmbedOp(int64_t table, float scale, int64_t out) : table_(table), scale_(scale), out_(out) {}
  void run(const OpContext& context) const override;

 private:
  int64_t table_;
  float scale_;
  int64_t out_;
};

class NormOp : public Op {
 public:
  NormOp(BufferView x, int64_t weight, float eps, int64_t out, int64_t quantised)
      : x_(x), weight_(weight), eps_(eps), out_(out), quantised_(quantised) {}
  void run(const OpContext& context) const override;

 private:
  BufferView x_;
  int64_t weight_;
  float eps_;
  int64_t out_, quantised_;
};

class QuantiseOp : public Op {
 public:
  QuantiseOp(BufferView x, int64_t quantised) : x_(x), quantised_(quantised) {}
  void run(const OpContext& context) const override;

 private:
  BufferView x_;
  int64_t quantised_;
};

class LinearOp : public Op {
 public:
  LinearOp(int64_t matrix, BufferView x, int64_t quantised, int64_t bias, int64_t out, bool accumulate)
      : matrix_(matrix), x_(x), quantised_(quantised), bias_(bias), out_(out), accumulate_(accumulate) {}
  void run(const OpContext& context) const override;

 private:
  int64_t matrix_;
  BufferView x_;
  int64_t quantised_, bias_, out_;
  bool accumulate_;
};

class HeadsOp : public Op {
 public:
  HeadsOp(std::vector<HeadsPart> parts, int64_t layer) : parts_(std::move(parts)), layer_(layer) {}
  void run(const OpContext& context) const override;

 private:
  void one_row(const OpContext& context, int64_t row) const;

  std::vector<HeadsPart> parts_;
  int64_t layer_;
};

class AttentionOp : public Op {
 public:
  AttentionOp(int64_t q, int64_t layer, int64_t num_heads, int64_t window, float scale, int64_t out)
      : q_(q), layer_(layer), num_heads_(num_heads), window_(window), scale_(scale), out_(out) {}
  int64_t num_claims() const override { return 2; }
  void run(const OpContext& context) const override;

 private:
  AttentionTask task(const OpContext& context, const AttentionPlan& plan, const AttentionPiece& piece,
                     int64_t kv_head) const;

  int64_t q_, layer_, num_heads_, window_;
  float scale_;
  int64_t out_;
};

class GatedOp : public Op {
 public:
  GatedOp(BufferView gate, BufferView up, Activation activation, int64_t out, int64_t quantised)
      : gate_(gate), up_(up), activation_(activation), out_(out), quantised_(quantised) {}
  void run(const OpContext& context) const override;

 private:
  BufferView gate_, up_;
  Activation activation_;
  int64_t out_, quantised_;
};

class AddOp : public Op {
 public:
  AddOp(BufferView x, BufferView y, int64_t out) : x_(x), y_(y), out_(out) {}
  void run(const OpContext& context) const override;

 private:
  BufferView x_, y_;
  int64_t out_;
};

// The end: wanted rows are gathered, normalised, multiplied and sampled, kHeadRows at a time, so
// that the logits of a long prompt never exist all at once.
class HeadOp : public Op {
 public:
  static constexpr int64_t kHeadRows = 64;

  struct Buffers {
    int64_t hidden, quantised, logits;
  };

  HeadOp(BufferView x, int64_t norm, float eps, int64_t matrix, float scale, Buffers buffers, int64_t max_chunks)
      : x_(x), norm_(norm), eps_(eps), matrix_(matrix), scale_(scale), buffers_(buffers), max_chunks_(max_chunks) {}
  int64_t num_claims() const override { return 3 * max_chunks_; }
  void run(const OpContext& context) const override;

 private:
  void gather(const OpContext& context, int64_t begin, int64_t end, Claims& claims) const;
  void sample(const OpContext& context, int64_t begin, int64_t end, Claims& claims) const;

  BufferView x_;
  int64_t norm_;
  float eps_;
  int64_t matrix_;
  float scale_;
  Buffers buffers_;
  int64_t max_chunks_;
};

}  // namespace roost
