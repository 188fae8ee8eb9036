// The ops beside the linear layers: one table an instruction set, as in kernels.h.
//
// Each works on one row (or one attention task), so that threads split rows and no row can see
// another. All instruction sets compute the same bits: 16 lanes, one order of operations.
#pragma once

#include <cstdint>

namespace roost {

enum class RopeStyle : int32_t { kInterleaved = 0, kHalf = 1 };
enum class Activation : int32_t { kSilu = 0, kGeluTanh = 1 };
enum class KvType : int32_t { kBf16 = 0, kF32 = 1, kInt8 = 2 };

// KV is reduced in splits of this many tokens, counted from position 0 of the sequence.
constexpr int64_t kSplitTokens = 512;
// Query rows (tokens × heads of a group) that an attention task takes at most, unless one token's
// group is larger. 96 rows of scores (200 KB) stay in a 512 KB L2 cache beside a page of K and V.
constexpr int64_t kTaskQueryRows = 96;
// Pages of V that many query rows take at once, as f32: 16 KB of the first level cache at head_dim 64.
constexpr int64_t kRunPages = 4;
// Pages of K or V between the one in use and the one that comes into the cache meanwhile, in tasks of few rows.
constexpr int64_t kPagesAhead = 4;

// One token's K or V of one head, into its page.
//   bf16: K [head_dim / 2][16 tokens][2], V [8 token pairs][head_dim][2]
//   f32:  K [head_dim][16 tokens],        V [16 tokens][head_dim]
//   int8: codes laid out like f32, then f32 scales: of K [groups of 32 values][16 tokens], of V [16 tokens];
//         x ≈ code · scale
struct KvHeadPage {
  uint8_t* data;
  int64_t head_dim;
  KvType type;
};

// Values of K that share a scale. A few channels of K are far larger than the others (in V they are
// not): with one scale for a head of 256, the others would keep 4 of their 8 bits.
constexpr int64_t kKeyGroup = 32;

// Where the scales of an int8 head page begin, and the bytes of a head page of K and of V.
static inline constexpr int64_t kv_code_bytes(int64_t head_dim) { return head_dim * 16; }
static inline constexpr int64_t v_head_bytes(int64_t head_dim, KvType type) {
  if (type == KvType::kInt8) return kv_code_bytes(head_dim) + 16 * 4;
  return head_dim * 16 * (type == KvType::kBf16 ? 2 : 4);
}
static inline constexpr int64_t k_head_bytes(int64_t head_dim, KvType type) {
  if (type != KvType::kInt8) return v_head_bytes(head_dim, type);
  return kv_code_bytes(head_dim) + (head_dim + kKeyGroup - 1) / kKeyGroup * 16 * 4;
}

// Causal attention of `num_rows` consecutive tokens of a sequence, for the query heads that share
// one KV head, over splits [split_begin, split_end) of the context.
struct AttentionTask {
  const float* q;  // first token, first head of the group; a token is q_stride floats on
  int64_t q_stride;
  float* out;  // likewise; or null, and `partial` takes each split's state
  int64_t out_stride;
  float* partial;        // of split_begin: [num_rows · group][head_dim + 2]: sums, maximum, total
  int64_t split_stride;  // floats from split to split of `partial`
  int64_t num_rows;
  int64_t first_position;
  int64_t group;
  int64_t head_dim;
  int64_t window;  // tokens that a position may look back on, itself included; 0: all
  float scale;
  KvType type;
  const uint8_t* k;     // K of this layer and KV head in page 0
  const uint8_t* v;     // V, likewise
  int64_t page_stride;  // bytes from page to page
  const int32_t* pages;
  int64_t split_begin;
  int64_t split_end;
  float* scratch;  // attention_scratch_floats(), 64-byte aligned
};

struct RowScan {
  float max;
  int32_t argmax;  // the lowest index of the maximum
  bool is_finite;  // no NaN and no infinity in the row
};

struct OpKernels {
  // y = x · w / sqrt(mean(x²) + eps)
  void (*rms_norm)(const float* x, const float* w, float* y, int64_t cols, float eps);
  // y = activation(gate) · up
  void (*gated)(const float* gate, const float* up, float* y, int64_t cols, Activation activation);
  void (*add)(const float* x, const float* y, float* out, int64_t cols);
  void (*scale)(const float* x, float factor, float* y, int64_t cols);
  // One head. table: cos and sin of the position, [rotary_dim / 2][2]; the rest is copied.
  void (*rope)(const float* x, float* y, const float* table, int64_t head_dim, int64_t rotary_dim, RopeStyle style);
  void (*store_k)(const float* k, KvHeadPage page, int64_t slot);
  void (*store_v)(const float* v, KvHeadPage page, int64_t slot);
  void (*attend)(const AttentionTask& task);
  // Merge the partial states of all splits of a task, left to right, into `out`.
  void (*merge)(const AttentionTask& task);
  RowScan (*scan)(const float* x, int64_t cols);
  // Σ exp((x − max) · inverse_temperature), accumulated in double every 1,024 terms.
  double (*sum_exp)(const float* x, int64_t cols, float max, float inverse_temperature);
  // Ids with low ≤ x < high in rising order, and their exp((x − max) · inverse_temperature).
  int64_t (*select)(const float* x, int64_t cols, float low, float high, float max, float inverse_temperature,
                    int32_t* ids, float* weights);
};

// Floats of scratch that an attention task needs.
int64_t attention_scratch_floats(int64_t group, int64_t head_dim);

namespace portable {
extern const OpKernels op_kernels;
}
namespace avx2 {
extern const OpKernels op_kernels;
}
namespace avx512 {
extern const OpKernels op_kernels;
}

}  // namespace roost
