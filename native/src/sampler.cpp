#include "sampler.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

namespace roost {
namespace {

using Candidate = SamplerScratch::Candidate;
constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Tokens are gathered and sorted by layers of depth, by how many powers of e their weight is below the
// best one's: mostly the first layers, of few tokens, do. Below the last, all that are left are one layer.
constexpr float kFirstDepth = 3.0f;
constexpr float kDeeper = 1.5f;
constexpr float kLastDepth = 100.0f;
constexpr int32_t kInPrompt = 1 << 30;  // a flag in counts, above any count

bool is_more_likely(const Candidate& a, const Candidate& b) {
  return a.logit != b.logit ? a.logit > b.logit : a.id < b.id;
}
// For the heap functions, which keep the largest by "less" in front.
bool is_less_likely(const Candidate& a, const Candidate& b) { return is_more_likely(b, a); }

// Tokens from the most likely on, sorted no further than they are asked for.
class Ranking {
 public:
  Ranking(const OpKernels& ops, const float* logits, int64_t vocab_size, float max, float inverse_temperature,
          SamplerScratch& scratch)
      : ops_(ops), logits_(logits), vocab_size_(vocab_size), max_(max), factor_(inverse_temperature), s_(scratch) {
    s_.sorted.clear();
  }

  // Number `index`, or null when there are fewer.
  const Candidate* at(size_t index) {
    while (s_.sorted.size() <= index) {
      if (s_.candidates.empty()) {
        if (is_complete_) return nullptr;
        deepen();
        continue;
      }
      std::pop_heap(s_.candidates.begin(), s_.candidates.end(), is_less_likely);
      s_.sorted.push_back(s_.candidates.back());
      s_.candidates.pop_back();
    }
    return &s_.sorted[index];
  }

 private:
  // The next layer becomes the candidates.
  void deepen() {
    const float high = floor_;
    is_complete_ = depth_ > kLastDepth;
    floor_ = is_complete_ ? std::numeric_limits<float>::lowest() : max_ - depth_ / factor_;
    depth_ *= kDeeper;
    const int64_t count = ops_.select(logits_, vocab_size_, floor_, high, max_, factor_, s_.ids, s_.weights);
    for (int64_t i = 0; i < count; ++i) s_.candidates.push_back({logits_[s_.ids[i]], s_.ids[i], s_.weights[i]});
    std::make_heap(s_.candidates.begin(), s_.candidates.end(), is_less_likely);
  }

  const OpKernels& ops_;
  const float* logits_;
  int64_t vocab_size_;
  float max_, factor_;
  float floor_ = kInfinity;
  float depth_ = kFirstDepth;
  bool is_complete_ = false;
  SamplerScratch& s_;
};

// The walk: the first token at which the sum of weights passes `target`, of the first `limit`.
int32_t walk(Ranking& ranking, size_t limit, double target) {
  double sum = 0.0;
  int32_t id = 0;
  for (size_t i = 0; i < limit; ++i) {
    const Candidate* candidate = ranking.at(i);
    if (candidate == nullptr) break;
    id = candidate->id;
    sum += static_cast<double>(candidate->weight);
    if (sum > target) break;
  }
  return id;
}

int32_t draw(const OpKernels& ops, const float* logits, int64_t vocab_size, float max, const HeadRecord& record,
             SamplerScratch& scratch) {
  const float factor = 1.0f / record.temperature;
  Ranking ranking(ops, logits, vocab_size, max, factor, scratch);
  const double u = uniform(record.seed, static_cast<uint64_t>(record.position));
  const bool has_top_k = record.top_k > 0 && record.top_k < vocab_size;
  size_t limit = has_top_k ? static_cast<size_t>(record.top_k) : static_cast<size_t>(vocab_size);
  double total = 0.0;
  if (has_top_k) {
    for (size_t i = 0; i < limit; ++i) {
      const Candidate* candidate = ranking.at(i);
      if (candidate == nullptr) break;
      total += static_cast<double>(candidate->weight);
    }
  } else {
    total = ops.sum_exp(logits, vocab_size, max, factor);
  }
  if (record.top_p < 1.0f || record.min_p > 0.0f) {
    // Both keep the tokens before a cut; the weight of the best one is 1, so min_p compares as is.
    const double wanted = static_cast<double>(record.top_p) * total;
    double sum = 0.0;
    size_t kept = 0;
    while (kept < limit) {
      const Candidate* candidate = ranking.at(kept);
      if (candidate == nullptr) break;
      if (kept > 0 && candidate->weight < record.min_p) break;
      sum += static_cast<double>(candidate->weight);
      ++kept;
      if (record.top_p < 1.0f && sum >= wanted) break;
    }
    limit = kept;
    total = sum;
  }
  return walk(ranking, limit, u * total);
}

// Penalties, in f32 and in this order, on every id of the history once.
void penalise(float* x, const HeadRecord& r, const RaggedPools& pools, SamplerScratch& s) {
  s.touched.clear();
  const auto touch = [&](int32_t id) {
    if (s.counts[id] == 0) s.touched.push_back(id);
  };
  for (int32_t i = 0; i < r.prompt_count; ++i) {
    const int32_t id = pools.ints[r.prompt_begin + i];
    touch(id);
    s.counts[id] |= kInPrompt;
  }
  for (int32_t i = 0; i < r.generated_count; ++i) {
    const int32_t id = pools.ints[r.generated_begin + i];
    touch(id);
    s.counts[id] += 1;
  }
  for (const int32_t id : s.touched) {
    const int32_t count = s.counts[id] & ~kInPrompt;
    s.counts[id] = 0;
    float logit = x[id] > 0.0f ? x[id] / r.repetition_penalty : x[id] * r.repetition_penalty;
    logit -= r.frequency_penalty * static_cast<float>(count);
    if (count > 0) logit -= r.presence_penalty;
    x[id] = logit;
  }
}

bool has_penalties(const HeadRecord& r) {
  return r.repetition_penalty != 1.0f || r.frequency_penalty != 0.0f || r.presence_penalty != 0.0f;
}

bool has_edits(const HeadRecord& r) {
  return has_penalties(r) || r.bias_count > 0 || r.banned_count > 0 || r.mask_begin >= 0;
}

void edit(float* x, int64_t vocab_size, const HeadRecord& r, const RaggedPools& pools, SamplerScratch& s) {
  if (has_penalties(r)) penalise(x, r, pools, s);
  for (int32_t i = 0; i < r.bias_count; ++i) {
    x[pools.ints[r.bias_begin + i]] += pools.floats[r.bias_values_begin + i];
  }
  for (int32_t i = 0; i < r.banned_count; ++i) x[pools.ints[r.banned_begin + i]] = -kInfinity;
  if (r.mask_begin < 0) return;
  for (int64_t word = 0; word * 32 < vocab_size; ++word) {
    uint32_t banned = ~pools.masks[r.mask_begin + word];
    const int64_t left = vocab_size - word * 32;
    if (left < 32) banned &= (1u << left) - 1u;
    for (; banned != 0; banned &= banned - 1) x[word * 32 + __builtin_ctz(banned)] = -kInfinity;
  }
}

// The most likely num_top tokens, in order.
void top(const OpKernels& ops, const float* x, int64_t vocab_size, float max, double log_total, int32_t num_top,
         SamplerScratch& s, const RowResult& result) {
  const int64_t wanted = std::min<int64_t>(num_top, vocab_size);
  int64_t count = 0;
  for (float depth = 4.0f; count < wanted; depth *= 4.0f) {
    const float low = depth < 1e6f ? max - depth : std::numeric_limits<float>::lowest();
    count = ops.select(x, vocab_size, low, kInfinity, max, 1.0f, s.ids, s.weights);
  }
  s.candidates.clear();
  for (int64_t i = 0; i < count; ++i) s.candidates.push_back({x[s.ids[i]], s.ids[i], 0.0f});
  std::partial_sort(s.candidates.begin(), s.candidates.begin() + wanted, s.candidates.end(), is_more_likely);
  for (int64_t i = 0; i < num_top; ++i) {
    // A vocabulary smaller than num_top: the rest says so.
    const bool is_there = i < wanted;
    result.top_ids[i] = is_there ? s.candidates[static_cast<size_t>(i)].id : -1;
    result.top_logprobs[i] =
        is_there ? static_cast<float>(static_cast<double>(s.candidates[static_cast<size_t>(i)].logit) - log_total)
                 : -kInfinity;
  }
  s.candidates.clear();
}

}  // namespace

SamplerScratch::SamplerScratch(int64_t vocab_size) : memory_(static_cast<size_t>(vocab_size + 16) * 4 * sizeof(float)) {
  const int64_t stride = vocab_size + 16;
  edited = memory_.floats();
  weights = edited + stride;
  ids = reinterpret_cast<int32_t*>(weights + stride);
  counts = ids + stride;
  touched.reserve(static_cast<size_t>(vocab_size));
  candidates.reserve(static_cast<size_t>(vocab_size));
  sorted.reserve(static_cast<size_t>(vocab_size));
}

double uniform(uint64_t seed, uint64_t position) {
  uint32_t key[2] = {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)};
  uint32_t c[4] = {static_cast<uint32_t>(position), static_cast<uint32_t>(position >> 32), 0, 0};
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xD2511F53} * c[0];
    const uint64_t b = uint64_t{0xCD9E8D57} * c[2];
    const uint32_t next[4] = {static_cast<uint32_t>(b >> 32) ^ c[1] ^ key[0], static_cast<uint32_t>(b),
                              static_cast<uint32_t>(a >> 32) ^ c[3] ^ key[1], static_cast<uint32_t>(a)};
    std::memcpy(c, next, sizeof(c));
    key[0] += 0x9E3779B9u;
    key[1] += 0xBB67AE85u;
  }
  const double high = static_cast<double>(c[0] >> 5);
  const double low = static_cast<double>(c[1] >> 6);
  return (high * 67108864.0 + low) * 0x1p-53;
}

void sample_row(const OpKernels& ops, const float* logits, int64_t vocab_size, const HeadRecord& record,
                const RaggedPools& pools, SamplerScratch& scratch, const RowResult& result) {
  RowScan scan = ops.scan(logits, vocab_size);
  *result.fault = scan.is_finite ? 0 : 1;
  *result.token_id = record.target;
  *result.logprob = std::numeric_limits<float>::quiet_NaN();
  std::fill_n(result.top_ids, record.num_top, -1);
  std::fill_n(result.top_logprobs, record.num_top, -kInfinity);
  std::fill_n(result.picked, record.picked_count, -kInfinity);
  if (!scan.is_finite) return;

  const bool is_sampled = (record.flags & HeadRecord::kIsSampled) != 0;
  const bool wants_logprob = (record.flags & HeadRecord::kWantsLogprob) != 0;
  double log_total = 0.0;
  if (wants_logprob || record.num_top > 0 || record.picked_count > 0) {
    log_total = static_cast<double>(scan.max) + std::log(ops.sum_exp(logits, vocab_size, scan.max, 1.0f));
  }
  if (record.num_top > 0) top(ops, logits, vocab_size, scan.max, log_total, record.num_top, scratch, result);
  const auto logprob_of = [&](int32_t id) { return static_cast<float>(static_cast<double>(logits[id]) - log_total); };
  for (int32_t i = 0; i < record.picked_count; ++i) {
    result.picked[i] = logprob_of(pools.ints[record.picked_begin + i]);
  }
  if (is_sampled) {
    const float* x = logits;
    if (has_edits(record)) {
      std::memcpy(scratch.edited, logits, static_cast<size_t>(vocab_size) * sizeof(float));
      edit(scratch.edited, vocab_size, record, pools, scratch);
      x = scratch.edited;
      scan = ops.scan(x, vocab_size);
      if (!std::isfinite(scan.max)) {
        *result.fault = 1;
        return;
      }
    }
    const bool is_greedy = record.temperature < kMinTemperature || record.top_k == 1;
    scratch.candidates.clear();
    *result.token_id = is_greedy ? scan.argmax : draw(ops, x, vocab_size, scan.max, record, scratch);
  }
  if (wants_logprob) *result.logprob = logprob_of(*result.token_id);
}

}  // namespace roost
