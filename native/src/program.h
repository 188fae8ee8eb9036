// A recorded forward pass: a flat list of ops over preplanned buffers, replayed once a step.
//
// All threads walk the list together, take pieces of an op from a counter, and go on when all of
// its pieces are done. Which thread does what has no influence on any result.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "cpu_features.h"
#include "kernels.h"
#include "kv_cache.h"
#include "lazy_memory.h"
#include "op_kernels.h"
#include "profile.h"
#include "sampler.h"
#include "step.h"
#include "threads.h"

namespace roost {

// The two tables of an instruction set.
struct Kernels {
  const LinearKernels* linear;
  const OpKernels* ops;
};

// The variant must be supported by this machine.
Kernels kernels_of(Isa isa);

struct Limits {
  int64_t max_rows;
  int64_t max_logits_rows;
  int64_t max_context_tokens;
};

// Columns [offset, offset + width) of an f32 buffer.
struct BufferView {
  int64_t buffer;
  int64_t offset;
  int64_t width;
};

// Heads of x, normalised (norm ≥ 0) and rotated (rope ≥ 0).
struct HeadsPart {
  BufferView x;
  int64_t head_dim;
  int64_t norm;
  float eps;
  int64_t rope;
};

// A matrix as segments, one below the other.
struct SegmentedMatrix {
  std::vector<PackedMatrix> segments;
  std::vector<int64_t> row_begin;    // of each segment
  std::vector<int64_t> block_begin;  // of each segment, and the total
  int64_t rows = 0;
  int64_t cols = 0;
};

// Rotation by position: cos and sin, computed in double, stored in f32, grown as positions appear.
class RopeTable {
 public:
  RopeTable(std::vector<float> inverse_frequencies, RopeStyle style, float scale, int64_t max_positions);
  // Before a step, by one thread: positions below `num_positions` can be asked for.
  void reserve(int64_t num_positions);
  const float* at(int64_t position) const { return memory_.floats() + position * rotary_dim(); }
  int64_t rotary_dim() const { return 2 * static_cast<int64_t>(inverse_frequencies_.size()); }
  RopeStyle style() const { return style_; }
  size_t nbytes() const { return memory_.nbytes(); }

 private:
  std::vector<float> inverse_frequencies_;
  RopeStyle style_;
  float scale_;
  int64_t num_done_ = 0;
  LazyMemory memory_;
};

class Program;
class NormOp;

// What an op needs of the program while it runs on a thread.
struct OpContext {
  const Program& program;
  const Step& step;
  Claims* claims;  // of the op's phases
  int thread;
  Profile* profile;  // of this thread, or null
  size_t first_phase;

  // Runs body(begin, end) on pieces of [0, num_pieces) of a phase, at most `chunk` at a time, as long
  // as there are any; returns when the other threads have done theirs. A phase of no pieces is none.
  // False: the run is over, and nothing of it may be touched.
  template <class Body>
  bool share(int64_t phase, int64_t num_pieces, int64_t chunk, const Body& body) const;
};

class Op {
 public:
  virtual ~Op() = default;
  // Phases of a run, at most.
  virtual int64_t num_phases() const { return 1; }
  virtual PhaseLabel label(const Program& program, int64_t phase) const = 0;
  // False: the run is over.
  virtual bool run(const OpContext& context) const = 0;
};

class Program {
 public:
  // `pool` outlives the program.
  Program(Isa isa, ThreadPool& pool, Limits limits, std::unique_ptr<KvCache> kv);

  // Recording. Numbers that come back name things in later calls; −1 is "none".
  int64_t add_buffer(int64_t width);
  int64_t add_quantised(int64_t width, int num_terms);
  int64_t add_matrix(std::vector<PackedMatrix> segments);
  int64_t add_vector(const float* values, int64_t width);
  int64_t add_rope(std::vector<float> inverse_frequencies, RopeStyle style, float scale);
  void embed(int64_t table, float scale, int64_t out);
  // is_for_next: the next call is a linear, gated or not, and nobody else reads the result.
  void rms_norm(BufferView x, int64_t weight, float eps, int64_t out, int64_t quantised, bool is_for_next);
  void quantise(BufferView x, int64_t quantised);
  void linear(int64_t matrix, BufferView x, int64_t quantised, int64_t bias, int64_t out, bool accumulate);
  // A linear whose first half of columns is a gate, and whose second half it is for: both halves
  // are whole blocks of quantised groups.
  void gated_linear(int64_t matrix, BufferView x, int64_t quantised, int64_t bias, Activation activation, int64_t out,
                    int64_t out_quantised);
  void heads(HeadsPart part, int64_t out);
  // parts: q, k, v. rotated: a buffer as wide as q. shape: layer, number of heads, window.
  void attention(const std::vector<HeadsPart>& parts, const std::vector<int64_t>& shape, float scale, int64_t rotated,
                 int64_t out, int64_t quantised);
  void gated(BufferView gate, BufferView up, Activation activation, int64_t out, int64_t quantised);
  void add(BufferView x, BufferView y, int64_t out);
  void head(BufferView x, int64_t norm, float eps, int64_t matrix, float scale, int num_terms);
  // Reserves the buffers. Throws std::bad_alloc.
  void finish();

  // From now on runs are timed, or no longer; what was measured is forgotten. Not during a run.
  void profile(bool is_on);
  // By label, in order of first appearance: what the timed runs came to, all threads together.
  std::vector<std::pair<PhaseLabel, Profile::Times>> profiled() const;

  // One step. The inputs must be in range: see `check`.
  void run(const StepInputs& inputs, const StepResults& results);

  const Limits& limits() const { return limits_; }
  KvCache& kv() const { return *kv_; }
  int64_t vocab_size() const { return vocab_size_; }
  int64_t token_ids_end() const { return num_embeddings_; }
  int64_t buffer_nbytes() const;

  // For ops.
  const Kernels& kernels() const { return kernels_; }
  ThreadPool& pool() const { return pool_; }
  float* row(int64_t buffer, int64_t row) const;
  int64_t stride(int64_t buffer) const { return buffers_[static_cast<size_t>(buffer)].stride; }
  int num_terms(int64_t buffer) const { return buffers_[static_cast<size_t>(buffer)].num_terms; }
  // Groups of row `row` of a quantised buffer that holds rows of `width`.
  QuantGroup* quantised_row(int64_t buffer, int64_t width, int64_t row) const;
  const SegmentedMatrix& matrix(int64_t number) const { return matrices_[static_cast<size_t>(number)]; }
  const float* vector(int64_t number) const { return vectors_[static_cast<size_t>(number)]; }
  const RopeTable& rope(int64_t number) const { return ropes_[static_cast<size_t>(number)]; }
  float* scratch(int thread) const { return scratch_[static_cast<size_t>(thread)].floats(); }
  SamplerScratch& sampler_scratch(int thread) const { return *samplers_[static_cast<size_t>(thread)]; }
  int64_t plan_index(AttentionKind kind) const;

 private:
  struct Buffer {
    int64_t stride;  // floats
    int64_t row_bytes;
    int64_t num_rows;
    int num_terms;      // of a quantised buffer, else 0
    LazyMemory memory;  // f32 rows, or groups of quantised ones
  };

  int64_t push_buffer(int64_t stride, int64_t row_bytes, int num_terms);
  void need_scratch(int64_t floats);
  void plan(const StepInputs& inputs, const StepResults& results);
  void find_prepared_rows();
  void execute(int thread);
  const NormOp* take_norm();

  Kernels kernels_;
  ThreadPool& pool_;
  Limits limits_;
  std::unique_ptr<KvCache> kv_;
  std::vector<Buffer> buffers_;
  std::vector<SegmentedMatrix> matrices_;
  std::vector<const float*> vectors_;
  std::vector<RopeTable> ropes_;
  std::vector<std::unique_ptr<Op>> ops_;
  const NormOp* norm_for_next_ = nullptr;
  std::vector<AttentionKind> attention_kinds_;
  std::vector<LazyMemory> scratch_;
  std::vector<std::unique_ptr<SamplerScratch>> samplers_;
  std::vector<Claims> claims_;     // one a phase, op after op
  std::vector<Profile> profiles_;  // one a thread, or none
  int64_t scratch_floats_ = 0;
  int64_t vocab_size_ = 0;
  int64_t num_embeddings_ = 0;
  Step step_{};
};

template <class Body>
bool OpContext::share(int64_t phase, int64_t num_pieces, int64_t chunk, const Body& body) const {
  if (num_pieces == 0) return true;
  if (profile != nullptr) profile->begin(first_phase + static_cast<size_t>(phase));
  int64_t num_mine = 0;
  for (int64_t begin; (begin = claims[phase].take(chunk)) < num_pieces;) {
    const int64_t end = begin + chunk < num_pieces ? begin + chunk : num_pieces;
    body(begin, end);
    num_mine += end - begin;
  }
  if (profile != nullptr) profile->arrive();
  if (!program.pool().finish(thread, claims[phase], num_mine, num_pieces)) return false;
  if (profile != nullptr) profile->leave();
  return true;
}

// Throws std::invalid_argument that says what is out of range; nothing has been written then.
void check(const Program& program, const StepInputs& inputs, const StepResults& results);

}  // namespace roost
