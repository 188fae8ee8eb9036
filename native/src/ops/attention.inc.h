// Paged causal attention with grouped heads and an optional sliding window, in f32.
//
// One query row (a token's head) is reduced like this, whatever the task that holds it:
//   tokens   0 ........ 511 | 512 ....... 1023 | 1024 ...        splits of kSplitTokens
//   a split: scores q·k, each summed over head_dim from low to high; their maximum m;
//            p = exp(score − m); l = Σ p in 16 lanes by token number, folded; o = Σ p·v by token
//   the row: the states (m, l, o) of its splits merged left to right; the result is o / l
// A row takes part only in its own visible tokens, so what lies behind them (the next rows of the
// same sequence, or leftovers in a page) is never multiplied in.
//
// The work of a task goes page by page: K (or V) of the page becomes f32 in the L1 cache once, and
// tiles of query rows run over it with their sums in registers; pages of V that all rows see whole are
// taken several at once, so that sums travel less. Where all rows fit one tile (decode) pages are
// read as they are. int8: Σ q·code of each group of K is multiplied by the group's scale as it joins the
// score; each p is multiplied by the scale of its token's V after l was summed.
#include "attention_tiles.inc.h"

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

// K or V of the task in page `index` of its sequence.
ROOST_INLINE const uint8_t* page_at(const AttentionTask& task, const uint8_t* base, int64_t index) {
  return base + task.pages[index] * task.page_stride;
}

ROOST_INLINE void prefetch_page(const AttentionTask& task, const uint8_t* base, int64_t index, int64_t num_pages) {
  if (index >= num_pages) return;
  const uint8_t* at = page_at(task, base, index);
  const int64_t nbytes = k_head_bytes(task.head_dim, task.type);
  for (int64_t b = 0; b < nbytes; b += 64) prefetch(at + b);
}

ROOST_INLINE const float* scales_of(const AttentionTask& task, const uint8_t* page) {
  return reinterpret_cast<const float*>(page + kv_code_bytes(task.head_dim));
}

// p of the 16 tokens of a page, times the scales of their V.
ROOST_INLINE void scale_weights(const AttentionTask& task, const Scratch& s, const uint8_t* v, Range rows,
                                int64_t offset) {
  const F32 scales = F32::load(scales_of(task, v));
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    float* p = s.scores + r * kScoreStride + offset;
    (F32::load(p) * scales).store(p);
  }
}

template <class Page>
ROOST_INLINE void page_scores(const AttentionTask& task, const Scratch& s, Page k, Range rows, int64_t offset) {
  for (int64_t r = rows.begin; r < rows.end; r += kTileRows) {
    scores_of<Page>(smaller(kTileRows, rows.end - r), s.q + r * task.head_dim, task.head_dim, k,
                    s.scores + r * kScoreStride + offset);
  }
}

// Tokens [page_begin, page_begin + 16) of V. Rows of one tile may differ in what they see at the
// edges: those tokens are added for each token's rows alone, in the same order.
template <class Page>
ROOST_INLINE void page_values(const AttentionTask& task, const Scratch& s, Page v, Range rows, int64_t page_begin,
                              int64_t split_begin, int64_t limit) {
  const int64_t page_end = smaller(page_begin + kPageTokens, limit);
  const auto add = [&](int64_t first, int64_t last, int64_t begin, int64_t end) {
    if (begin >= end) return;
    values_of<Page>(last - first, s.scores + first * kScoreStride + (page_begin - split_begin), task.head_dim, v,
                    begin - page_begin, end - page_begin, s.sums + first * task.head_dim);
  };
  for (int64_t r = rows.begin; r < rows.end; r += kTileRows) {
    const int64_t last = smaller(r + kTileRows, rows.end);
    const Range low = visible(task, r / task.group, page_begin, page_end);
    const Range high = visible(task, (last - 1) / task.group, page_begin, page_end);
    const Range shared{high.begin, low.end};
    if (low.begin == high.begin && low.end == high.end) {
      add(r, last, shared.begin, shared.end);
      continue;
    }
    const bool has_shared = shared.begin < shared.end;
    for (int64_t a = r; a < last;) {
      const int64_t token = a / task.group;
      const int64_t b = smaller(last, (token + 1) * task.group);
      const Range own = visible(task, token, page_begin, page_end);
      add(a, b, own.begin, has_shared ? shared.begin : own.end);
      a = b;
    }
    if (!has_shared) continue;
    add(r, last, shared.begin, shared.end);
    for (int64_t a = r; a < last;) {
      const int64_t token = a / task.group;
      const int64_t b = smaller(last, (token + 1) * task.group);
      add(a, b, shared.end, visible(task, token, page_begin, page_end).end);
      a = b;
    }
  }
}

// num_pages of V, from `page` on, that all rows see whole.
template <class Stored>
ROOST_INLINE void run_values(const AttentionTask& task, const Scratch& s, int64_t page, int64_t num_pages,
                             int64_t offset) {
  const int64_t num_tokens = num_pages * kPageTokens;
  const int64_t num_query_rows = task.num_rows * task.group;
  for (int64_t i = 0; i < num_pages; ++i) {
    const uint8_t* v = page_at(task, task.v, page + i);
    widen_into_run(Stored::at_bytes(v), task.head_dim, num_tokens, s.page + i * kPageTokens * kLanes);
    if constexpr (Stored::kHasScales) scale_weights(task, s, v, {0, num_query_rows}, offset + i * kPageTokens);
  }
  for (int64_t r = 0; r < num_query_rows; r += kTileRows) {
    values_of<RunOfPages>(smaller(kTileRows, num_query_rows - r), s.scores + r * kScoreStride + offset, task.head_dim,
                          {s.page, num_tokens}, 0, num_tokens, s.sums + r * task.head_dim);
  }
}

template <class Stored>
void one_split(const AttentionTask& task, const Scratch& s, int64_t split) {
  const int64_t split_begin = split * kSplitTokens;
  const int64_t limit = smaller(split_begin + kSplitTokens, task.first_position + task.num_rows);
  const int64_t num_query_rows = task.num_rows * task.group;
  const int64_t page_first = visible(task, 0, split_begin, limit).begin / kPageTokens;
  const int64_t page_last = (limit + kPageTokens - 1) / kPageTokens;
  const bool is_direct = Stored::kIsFloat || num_query_rows <= kTileRows;
  for (int64_t page = page_first; page < page_last; ++page) {
    const int64_t begin = page * kPageTokens;
    const Range rows = rows_that_see(task, begin, begin + kPageTokens);
    const uint8_t* k = page_at(task, task.k, page);
    prefetch_page(task, task.k, page + 1, page_last);
    const auto score = [&](auto page_of_k) {
      if constexpr (Stored::kHasScales) {
        page_scores(task, s, KeyPage<decltype(page_of_k)>{page_of_k, scales_of(task, k)}, rows, begin - split_begin);
      } else {
        page_scores(task, s, page_of_k, rows, begin - split_begin);
      }
    };
    if (is_direct) {
      score(Stored::at_bytes(k));
    } else {
      widen(Stored::at_bytes(k), task.head_dim, kPageTokens, s.page);
      score(FloatPage{s.page});
    }
  }
  for (int64_t r = 0; r < num_query_rows; ++r) {
    const Range range = visible(task, r / task.group, split_begin, limit);
    float* state = s.state + 4 * r;
    state[0] = state[1] = 0.0f;
    for (int64_t at = 0; at < task.head_dim; at += kLanes) F32::zero().store(s.sums + r * task.head_dim + at);
    if (range.begin >= range.end) continue;
    soften(s.scores + r * kScoreStride, {range.begin - split_begin, range.end - split_begin}, state);
  }
  const Range whole = seen_by_all(task, split_begin, limit);
  for (int64_t page = page_first; page < page_last;) {
    const int64_t begin = page * kPageTokens;
    if (!is_direct && begin >= whole.begin && begin + kPageTokens <= whole.end) {
      const int64_t num_pages = smaller(kRunPages, (whole.end - begin) / kPageTokens);
      run_values<Stored>(task, s, page, num_pages, begin - split_begin);
      page += num_pages;
      continue;
    }
    const Range rows = rows_that_see(task, begin, begin + kPageTokens);
    const uint8_t* v = page_at(task, task.v, page);
    prefetch_page(task, task.v, page + 1, page_last);
    if constexpr (Stored::kHasScales) scale_weights(task, s, v, rows, begin - split_begin);
    if (is_direct) {
      page_values(task, s, Stored::at_bytes(v), rows, begin, split_begin, limit);
    } else {
      widen(Stored::at_bytes(v), kPageTokens, task.head_dim, s.page);
      page_values(task, s, FloatPage{s.page}, rows, begin, split_begin, limit);
    }
    ++page;
  }
}

}  // namespace attention

void attend(const AttentionTask& task) {
  namespace a = attention;
  const a::Scratch s = a::carve(task.scratch, task.group, task.head_dim);
  const int64_t num_query_rows = task.num_rows * task.group;
  for (int64_t r = 0; r < num_query_rows; ++r) {
    const float* q = task.q + r / task.group * task.q_stride + r % task.group * task.head_dim;
    for (int64_t at = 0; at < task.head_dim; at += kLanes) {
      (F32::load(q + at) * F32::splat(task.scale)).store(s.q + r * task.head_dim + at);
    }
    s.state[4 * r + 2] = s.state[4 * r + 3] = 0.0f;
  }
  for (int64_t split = task.split_begin; split < task.split_end; ++split) {
    switch (task.type) {
      case KvType::kBf16:
        a::one_split<a::PairPage>(task, s, split);
        break;
      case KvType::kF32:
        a::one_split<a::FloatPage>(task, s, split);
        break;
      case KvType::kInt8:
        a::one_split<a::CodePage>(task, s, split);
        break;
    }
    for (int64_t r = 0; r < num_query_rows; ++r) {
      float* state = s.state + 4 * r;
      const float* sums = s.sums + r * task.head_dim;
      if (task.out != nullptr) {
        a::merge_state(s.merged + r * task.head_dim, state + 2, state + 3, sums, state[0], state[1], task.head_dim);
        continue;
      }
      float* to = task.partial + ((split - task.split_begin) * num_query_rows + r) * (task.head_dim + 2);
      for (int64_t at = 0; at < task.head_dim; at += kLanes) F32::load(sums + at).store(to + at);
      to[task.head_dim] = state[0];
      to[task.head_dim + 1] = state[1];
    }
  }
  if (task.out == nullptr) return;
  for (int64_t r = 0; r < num_query_rows; ++r) {
    float* out = task.out + r / task.group * task.out_stride + r % task.group * task.head_dim;
    a::finish(s.merged + r * task.head_dim, s.state[4 * r + 3], task.head_dim, out);
  }
}

void merge(const AttentionTask& task) {
  namespace a = attention;
  float* merged = task.scratch;
  const int64_t num_query_rows = task.num_rows * task.group;
  for (int64_t r = 0; r < num_query_rows; ++r) {
    float m = 0.0f;
    float l = 0.0f;
    for (int64_t split = task.split_begin; split < task.split_end; ++split) {
      const float* from = task.partial + ((split - task.split_begin) * num_query_rows + r) * (task.head_dim + 2);
      a::merge_state(merged, &m, &l, from, from[task.head_dim], from[task.head_dim + 1], task.head_dim);
    }
    float* out = task.out + r / task.group * task.out_stride + r % task.group * task.head_dim;
    a::finish(merged, l, task.head_dim, out);
  }
}

}  // namespace roost::ROOST_ISA
