// From a row of logits to a token, and log-probabilities.
//
// Log-probabilities are of the raw logits. A choice edits them in this order: repetition,
// frequency and presence penalty, bias, banned and not allowed ids; then temperature, top-k, top-p,
// min-p; then one draw. The draw walks the kept tokens from the most likely on (ties: lower id
// first) until their weights pass u times the weight of all kept, with u from Philox4x32-10
// (Salmon et al. 2011) keyed by the seed at the counter (position, 0). Rows do not share anything.
#pragma once

#include <cstdint>
#include <vector>

#include "lazy_memory.h"
#include "op_kernels.h"

namespace roost {

constexpr int32_t kMaxTop = 128;
// At a lower temperature the most likely token is taken: any other has less than e^-1e6 · gap.
constexpr float kMinTemperature = 1e-6f;

struct HeadRecord {
  enum Flags : int32_t { kIsSampled = 1, kWantsLogprob = 2 };
  uint64_t seed;
  int64_t position;
  int32_t row;
  int32_t target;
  int32_t flags;
  int32_t num_top;
  float temperature;
  int32_t top_k;
  float top_p;
  float min_p;
  float repetition_penalty;
  float frequency_penalty;
  float presence_penalty;
  int32_t bias_begin, bias_count;
  int32_t prompt_begin, prompt_count;
  int32_t generated_begin, generated_count;
  int32_t banned_begin, banned_count;
  int32_t picked_begin, picked_count;
  int32_t bias_values_begin;
  int32_t mask_begin;
  int32_t unused;
};
static_assert(sizeof(HeadRecord) == 112);

// What the records' begins and counts point into.
struct RaggedPools {
  const int32_t* ints;
  int64_t num_ints;
  const float* floats;
  int64_t num_floats;
  const uint32_t* masks;
  int64_t num_masks;
};

struct RowResult {
  int32_t* token_id;
  float* logprob;       // NaN where not wanted
  int32_t* top_ids;     // [num_top]
  float* top_logprobs;  // [num_top]
  float* picked;        // [picked_count]
  uint8_t* fault;       // 1: the logits are not finite, or nothing may be chosen
};

// A thread's working memory; sized once.
class SamplerScratch {
 public:
  explicit SamplerScratch(int64_t vocab_size);

  struct Candidate {
    float logit;
    int32_t id;
    float weight;
  };

  float* edited;                      // [vocab]
  int32_t* ids;                       // [vocab]
  float* weights;                     // [vocab]
  int32_t* counts;                    // [vocab], all zero between rows
  std::vector<int32_t> touched;       // ids whose counts are not zero
  std::vector<Candidate> candidates;  // a heap
  std::vector<Candidate> sorted;

 private:
  LazyMemory memory_;
};

// Ids in the record must be within the vocabulary.
void sample_row(const OpKernels& ops, const float* logits, int64_t vocab_size, const HeadRecord& record,
                const RaggedPools& pools, SamplerScratch& scratch, const RowResult& result);

// Uniform in [0, 1), 53 bits.
double uniform(uint64_t seed, uint64_t position);

}  // namespace roost
