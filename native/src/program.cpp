#include "program.h"

#include <algorithm>
#include <cmath>

#include "attention_plan.h"
#include "program_ops.h"

namespace roost {
namespace {

constexpr int64_t kFloatBytes = sizeof(float);

int64_t padded(int64_t width) { return (width + kBlockRows - 1) / kBlockRows * kBlockRows; }

}  // namespace

RopeTable::RopeTable(std::vector<float> inverse_frequencies, RopeStyle style, float scale, int64_t max_positions)
    : inverse_frequencies_(std::move(inverse_frequencies)),
      style_(style),
      scale_(scale),
      memory_(static_cast<size_t>(max_positions * rotary_dim()) * sizeof(float)) {}

void RopeTable::reserve(int64_t num_positions) {
  for (; num_done_ < num_positions; ++num_done_) {
    float* to = memory_.floats() + num_done_ * rotary_dim();
    for (const float frequency : inverse_frequencies_) {
      const double angle = static_cast<double>(num_done_) * static_cast<double>(frequency);
      *to++ = static_cast<float>(std::cos(angle) * static_cast<double>(scale_));
      *to++ = static_cast<float>(std::sin(angle) * static_cast<double>(scale_));
    }
  }
}

Program::Program(Isa isa, ThreadPool& pool, Limits limits, std::unique_ptr<KvCache> kv)
    : kernels_(kernels_of(isa)), pool_(pool), limits_(limits), kv_(std::move(kv)) {}

int64_t Program::push_buffer(int64_t stride, int64_t row_bytes, int num_terms) {
  // Each thread may make a row of its own.
  const int64_t num_rows = std::max<int64_t>(limits_.max_rows, pool_.num_threads());
  buffers_.push_back({stride, row_bytes, num_rows, num_terms, {}});
  return static_cast<int64_t>(buffers_.size()) - 1;
}

int64_t Program::add_buffer(int64_t width) { return push_buffer(padded(width), padded(width) * kFloatBytes, 0); }

int64_t Program::add_quantised(int64_t width, int num_terms) {
  return push_buffer(0, width / kGroup * num_terms * static_cast<int64_t>(sizeof(QuantGroup)), num_terms);
}

int64_t Program::add_matrix(std::vector<PackedMatrix> segments) {
  SegmentedMatrix m;
  m.cols = segments.front().cols;
  m.block_begin.push_back(0);
  for (const PackedMatrix& segment : segments) {
    m.row_begin.push_back(m.rows);
    m.rows += segment.rows;
    m.block_begin.push_back(m.block_begin.back() + (segment.rows + kBlockRows - 1) / kBlockRows);
  }
  m.segments = std::move(segments);
  matrices_.push_back(std::move(m));
  return static_cast<int64_t>(matrices_.size()) - 1;
}

int64_t Program::add_vector(const float* values, int64_t) {
  vectors_.push_back(values);
  return static_cast<int64_t>(vectors_.size()) - 1;
}

int64_t Program::add_rope(std::vector<float> inverse_frequencies, RopeStyle style, float scale) {
  ropes_.emplace_back(std::move(inverse_frequencies), style, scale, limits_.max_context_tokens);
  return static_cast<int64_t>(ropes_.size()) - 1;
}

void Program::need_scratch(int64_t floats) { scratch_floats_ = std::max(scratch_floats_, floats); }

void Program::embed(int64_t table, float scale, int64_t out) {
  const int64_t rows = matrix(table).rows;
  num_embeddings_ = num_embeddings_ == 0 ? rows : std::min(num_embeddings_, rows);
  ops_.push_back(std::make_unique<EmbedOp>(table, scale, out));
}

void Program::rms_norm(BufferView x, int64_t weight, float eps, int64_t out, int64_t quantised, bool is_for_next) {
  need_scratch(padded(x.width));
  auto op = std::make_unique<NormOp>(x, weight, eps, out, quantised, is_for_next);
  norm_for_next_ = is_for_next ? op.get() : nullptr;
  ops_.push_back(std::move(op));
}

const NormOp* Program::take_norm() { return std::exchange(norm_for_next_, nullptr); }

void Program::quantise(BufferView x, int64_t quantised) { ops_.push_back(std::make_unique<QuantiseOp>(x, quantised)); }

void Program::linear(int64_t matrix, BufferView x, int64_t quantised, int64_t bias, int64_t out, bool accumulate) {
  const LinearArgs args{matrix, x, quantised, bias, take_norm()};
  ops_.push_back(std::make_unique<LinearOp>(*this, args, out, accumulate));
}

void Program::gated_linear(int64_t matrix, BufferView x, int64_t quantised, int64_t bias, Activation activation,
                           int64_t out, int64_t out_quantised) {
  need_scratch(GatedLinearOp::scratch_floats());
  const LinearArgs args{matrix, x, quantised, bias, take_norm()};
  ops_.push_back(std::make_unique<GatedLinearOp>(*this, args, activation, out, out_quantised));
}

void Program::heads(HeadsPart part, int64_t out) {
  need_scratch(2 * padded(part.head_dim));
  ops_.push_back(std::make_unique<HeadsOp>(part, out));
}

void Program::attention(const std::vector<HeadsPart>& parts, const std::vector<int64_t>& shape, float scale,
                        int64_t rotated, int64_t out, int64_t quantised) {
  const int64_t group = shape[1] / kv_->num_kv_heads();
  const AttentionKind kind{group, shape[2] > 0};
  if (plan_index(kind) == static_cast<int64_t>(attention_kinds_.size())) attention_kinds_.push_back(kind);
  need_scratch(AttentionOp::scratch_floats(group, kv_->head_dim()));
  const AttentionOp::Shape s{shape[0], shape[1], shape[2], scale};
  ops_.push_back(
      std::make_unique<AttentionOp>(AttentionOp::Parts{parts[0], parts[1], parts[2]}, s, rotated, out, quantised));
}

void Program::gated(BufferView gate, BufferView up, Activation activation, int64_t out, int64_t quantised) {
  need_scratch(padded(gate.width));
  ops_.push_back(std::make_unique<GatedOp>(gate, up, activation, out, quantised));
}

void Program::add(BufferView x, BufferView y, int64_t out) { ops_.push_back(std::make_unique<AddOp>(x, y, out)); }

void Program::head(BufferView x, int64_t norm, float eps, int64_t matrix, float scale, int num_terms) {
  const SegmentedMatrix& m = this->matrix(matrix);
  vocab_size_ = m.rows;
  const bool has_quantised = std::any_of(m.segments.begin(), m.segments.end(),
                                         [](const PackedMatrix& segment) { return is_quantised(segment.format); });
  const int64_t hidden = add_buffer(x.width);
  const int64_t quantised = has_quantised ? add_quantised(x.width, num_terms) : -1;
  const int64_t logits = add_buffer(vocab_size_);
  for (const int64_t buffer : {hidden, quantised, logits}) {
    if (buffer < 0) continue;
    const int64_t num_rows = std::min(HeadOp::kHeadRows, limits_.max_logits_rows);
    buffers_[static_cast<size_t>(buffer)].num_rows = std::max<int64_t>(num_rows, pool_.num_threads());
  }
  const HeadOp::Buffers buffers{hidden, quantised, logits};
  ops_.push_back(std::make_unique<HeadOp>(*this, x, HeadOp::Norm{norm, eps}, matrix, scale, buffers));
}

void Program::finish() {
  const auto bytes = [](int64_t count, size_t size) { return static_cast<size_t>(count) * size; };
  for (Buffer& b : buffers_) b.memory = LazyMemory(bytes(b.num_rows * b.row_bytes, 1));
  for (int thread = 0; thread < pool_.num_threads(); ++thread) {
    scratch_.emplace_back(bytes(scratch_floats_, sizeof(float)));
    samplers_.push_back(std::make_unique<SamplerScratch>(vocab_size_));
  }
  int64_t num_phases = 0;
  for (const auto& op : ops_) num_phases += op->num_phases();
  claims_ = std::vector<Claims>(static_cast<size_t>(num_phases));
}

float* Program::row(int64_t buffer, int64_t row) const {
  const Buffer& b = buffers_[static_cast<size_t>(buffer)];
  return b.memory.floats() + row * b.stride;
}

QuantGroup* Program::quantised_row(int64_t buffer, int64_t width, int64_t row) const {
  // A buffer is as wide as the widest of the values that share it; each has its own stride.
  const Buffer& b = buffers_[static_cast<size_t>(buffer)];
  return reinterpret_cast<QuantGroup*>(b.memory.data()) + row * (width / kGroup * b.num_terms);
}

int64_t Program::plan_index(AttentionKind kind) const {
  return std::find(attention_kinds_.begin(), attention_kinds_.end(), kind) - attention_kinds_.begin();
}

int64_t Program::buffer_nbytes() const {
  size_t total = 0;
  for (const Buffer& b : buffers_) total += b.memory.nbytes();
  for (const LazyMemory& s : scratch_) total += s.nbytes();
  for (const RopeTable& rope : ropes_) total += rope.nbytes();
  // Per thread: four arrays of the vocabulary, and two of candidates.
  total += samplers_.size() * static_cast<size_t>(vocab_size_) * (4 * 4 + 4 + 2 * sizeof(SamplerScratch::Candidate));
  return static_cast<int64_t>(total);
}

void Program::find_prepared_rows() {
  std::vector<uint8_t> is_prepared(static_cast<size_t>(step_.in->num_rows));
  for (const AttentionPlan& plan : step_.attention) {
    for (const AttentionPiece& piece : plan.pieces) {
      if (piece.is_prepared) std::fill_n(is_prepared.begin() + piece.row, piece.num_rows, uint8_t{1});
    }
  }
  step_.prepared_rows.clear();
  for (size_t row = 0; row < is_prepared.size(); ++row) {
    if (is_prepared[row] != 0) step_.prepared_rows.push_back(static_cast<int32_t>(row));
  }
}

void Program::plan(const StepInputs& in, const StepResults& out) {
  step_.in = &in;
  step_.out = &out;
  step_.row_pages.resize(static_cast<size_t>(in.num_rows));
  int64_t num_positions = 0;
  for (int64_t s = 0; s < in.num_slices; ++s) {
    const int32_t* pages = in.pages + in.page_offsets[s];
    for (int32_t row = in.slice_offsets[s]; row < in.slice_offsets[s + 1]; ++row) {
      step_.row_pages[static_cast<size_t>(row)] = pages[in.positions[row] / kPageTokens];
      num_positions = std::max<int64_t>(num_positions, in.positions[row] + 1);
    }
  }
  for (RopeTable& rope : ropes_) rope.reserve(num_positions);
  const PlanShape shape{kv_->num_kv_heads(), kv_->head_dim(), pool_.num_threads()};
  step_.attention.resize(attention_kinds_.size());
  for (size_t i = 0; i < attention_kinds_.size(); ++i) {
    plan_attention(in, attention_kinds_[i], shape, step_.attention[i]);
  }
  find_prepared_rows();
  for (Claims& claims : claims_) claims.reset();
}

void Program::execute(int thread) {
  Profile* profile = profiles_.empty() ? nullptr : &profiles_[static_cast<size_t>(thread)];
  if (profile != nullptr) profile->entered();
  size_t phase = 0;
  for (const auto& op : ops_) {
    if (!op->run({*this, step_, claims_.data() + phase, thread, profile, phase})) return;
    phase += static_cast<size_t>(op->num_phases());
  }
}

void Program::run(const StepInputs& inputs, const StepResults& results) {
  for (Profile& profile : profiles_) profile.start();
  plan(inputs, results);
  pool_.run([](void* self, int thread) { static_cast<Program*>(self)->execute(thread); }, this);
}

void Program::profile(bool is_on) {
  const auto num_threads = static_cast<size_t>(pool_.num_threads());
  profiles_ = std::vector<Profile>(is_on ? num_threads : 0, Profile(claims_.size()));
}

std::vector<std::pair<PhaseLabel, Profile::Times>> Program::profiled() const {
  std::vector<std::pair<PhaseLabel, Profile::Times>> found;
  const auto add = [&](const PhaseLabel& label, const Profile::Times& times) {
    auto same = std::find_if(found.begin(), found.end(), [&](const auto& f) { return f.first.name == label.name; });
    if (same == found.end()) same = found.insert(same, {label, {}});
    same->second.count += times.count;
    same->second.worked_ns += times.worked_ns;
    same->second.waited_ns += times.waited_ns;
  };
  for (const Profile& profile : profiles_) {
    add({"entry"}, profile.entry());
    size_t at = 0;
    for (const auto& op : ops_) {
      for (int64_t phase = 0; phase < op->num_phases(); ++phase) {
        add(op->label(*this, phase), profile.phases()[at++]);
      }
    }
  }
  return found;
}

}  // namespace roost
