// A query row of attention: the tokens it sees, its softmax within a split, and the merging of its splits.
namespace roost::ROOST_ISA {
namespace attention {

struct Range {
  int64_t begin, end;
};

ROOST_INLINE int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }
ROOST_INLINE int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

// Tokens of the context that row `token` of the task sees, cut to [low, high).
ROOST_INLINE Range visible(const AttentionTask& task, int64_t token, int64_t low, int64_t high) {
  const int64_t end = task.first_position + token + 1;
  const int64_t begin = task.window > 0 ? larger(0, end - task.window) : 0;
  return {larger(begin, low), smaller(end, high)};
}

// Tokens of [low, high) that every row sees.
ROOST_INLINE Range seen_by_all(const AttentionTask& task, int64_t low, int64_t high) {
  return {visible(task, task.num_rows - 1, low, high).begin, visible(task, 0, low, high).end};
}

// Query rows [begin, end) that see something of tokens [low, high). Rows that come later see
// later tokens, so they are consecutive.
ROOST_INLINE Range rows_that_see(const AttentionTask& task, int64_t low, int64_t high) {
  const int64_t first = larger(0, low - task.first_position);
  int64_t last = task.num_rows;
  if (task.window > 0) last = smaller(last, high - 1 + task.window - task.first_position);
  return {first * task.group, larger(first, last) * task.group};
}

struct Scratch {
  float* q;       // [query rows][head_dim], scaled
  float* scores;  // [query rows][kScoreStride]
  float* sums;    // [query rows][head_dim], of the split
  float* merged;  // [query rows][head_dim], of the splits so far
  float* state;   // [query rows][4]: split m and l, merged m and l
  float* page;    // [kRunPages · 16 · head_dim]
};

ROOST_INLINE int64_t max_query_rows(int64_t group) { return larger(kTaskQueryRows, group); }

ROOST_INLINE Scratch carve(float* at, int64_t group, int64_t head_dim) {
  const int64_t rows = max_query_rows(group);
  Scratch s;
  s.q = at;
  s.sums = s.q + rows * head_dim;
  s.merged = s.sums + rows * head_dim;
  s.page = s.merged + rows * head_dim;
  s.scores = s.page + kRunPages * kPageTokens * head_dim;
  s.state = s.scores + rows * kScoreStride;
  return s;
}

ROOST_INLINE float exp_of(float x) {
  float lanes[kLanes];
  exp(F32::splat(x)).store(lanes);
  return lanes[0];
}

// Scores of tokens [range.begin, range.end) of the split, in place → p. Lanes of the first and last
// page outside the range become 0. state: m, l.
ROOST_INLINE void soften(float* scores, Range range, float* state) {
  const int64_t first = range.begin / kLanes * kLanes;
  const F32 lowest = F32::splat(-__builtin_inff());
  F32 top = lowest;
  for (int64_t t = first; t < range.end; t += kLanes) {
    F32 s = F32::load(scores + t);
    if (t < range.begin || t + kLanes > range.end) {
      s = select(Mask::first(range.end - t), s, lowest);
      s = select(Mask::first(larger(0, range.begin - t)), lowest, s);
    }
    top = max(s, top);
  }
  const float max_score = top.max_lane();
  const F32 m = F32::splat(max_score);
  F32 total = F32::zero();
  for (int64_t t = first; t < range.end; t += kLanes) {
    F32 p = exp(F32::load(scores + t) - m);
    if (t < range.begin || t + kLanes > range.end) {
      p = select(Mask::first(range.end - t), p, F32::zero());
      p = select(Mask::first(larger(0, range.begin - t)), F32::zero(), p);
    }
    p.store(scores + t);
    total = total + p;
  }
  state[0] = max_score;
  state[1] = total.sum();
}

// Merge a split's state (m, l, o) into what came before; l == 0 says that nothing did.
ROOST_INLINE void merge_state(float* merged, float* m, float* l, const float* sums, float split_m, float split_l,
                              int64_t head_dim) {
  if (split_l == 0.0f) return;
  if (*l == 0.0f) {
    for (int64_t at = 0; at < head_dim; at += kLanes) F32::load(sums + at).store(merged + at);
    *m = split_m;
    *l = split_l;
    return;
  }
  const float new_m = *m > split_m ? *m : split_m;
  const float keep = exp_of(*m - new_m);
  const float take = exp_of(split_m - new_m);
  for (int64_t at = 0; at < head_dim; at += kLanes) {
    const F32 kept = F32::load(merged + at) * F32::splat(keep);
    fma(F32::load(sums + at), F32::splat(take), kept).store(merged + at);
  }
  *m = new_m;
  *l = __builtin_fmaf(split_l, take, *l * keep);
}

ROOST_INLINE void finish(const float* merged, float l, int64_t head_dim, float* out) {
  for (int64_t at = 0; at < head_dim; at += kLanes) (F32::load(merged + at) / F32::splat(l)).store(out + at);
}

}  // namespace attention
}  // namespace roost::ROOST_ISA
