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
// read as they are, while those that follow come into the cache. int8: Σ q·code of each group of K is
// multiplied by the group's scale as it joins the score; each p is multiplied by the scale of its
// token's V after l was summed.
#include "attention_tiles.inc.h"

#include "attention_rows.inc.h"

namespace roost::ROOST_ISA {
namespace attention {

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

// Page `index`, read in place while what is read kPagesAhead pages later comes into the cache.
template <class Stored>
ROOST_INLINE FetchingPage<Stored> fetching(const uint8_t* page, const uint8_t* later) {
  return {Stored::at_bytes(page), Stored::at_bytes(later)};
}

// Scores of all rows of a task that is one tile, also where a row sees nothing: those are not read.
template <int R, class Stored>
void few_rows_scores(const AttentionTask& task, const Scratch& s, int64_t page_first, int64_t page_last,
                     int64_t split_begin) {
  constexpr int N = kTileVectors<R>;
  float* scores = s.scores + page_first * kPageTokens - split_begin;
  const auto keys = [&](int64_t page) {
    const int64_t later = page + kPagesAhead;
    // Behind the last page of K come the first of V.
    const uint8_t* next = later < page_last ? page_at(task, task.k, later)
                                            : page_at(task, task.v, smaller(later - page_last + page_first, page));
    const uint8_t* k = page_at(task, task.k, page);
    if constexpr (Stored::kHasScales) {
      return KeyPage<FetchingPage<Stored>>{fetching<Stored>(k, next), scales_of(task, k)};
    } else {
      return fetching<Stored>(k, next);
    }
  };
  int64_t page = page_first;
  for (; page + N <= page_last; page += N, scores += N * kPageTokens) {
    decltype(keys(0)) k[N];
    for (int i = 0; i < N; ++i) k[i] = keys(page + i);
    tile_scores<R, N>(s.q, task.head_dim, k, scores);
  }
  for (; page < page_last; ++page, scores += kPageTokens) {
    const auto k = keys(page);
    tile_scores<R, 1>(s.q, task.head_dim, &k, scores);
  }
}

// num_pages of V that all rows of a task that is one tile see whole.
template <int R, class Stored>
void few_rows_values(const AttentionTask& task, const Scratch& s, int64_t page, int64_t num_pages, int64_t page_last,
                     int64_t offset) {
  for (const int64_t end = page + num_pages; page < end;) {
    FetchingPage<Stored> v[kPagesAhead];
    const int64_t n = smaller(kPagesAhead, end - page);
    for (int64_t i = 0; i < n; ++i, ++page) {
      const uint8_t* at = page_at(task, task.v, page);
      v[i] = fetching<Stored>(at, page_at(task, task.v, smaller(page + kPagesAhead, page_last - 1)));
      if constexpr (Stored::kHasScales) scale_weights(task, s, at, {0, R}, offset + i * kPageTokens);
    }
    tile_values<R>(s.scores + offset, task.head_dim, v, n, 0, kPageTokens, s.sums);
    offset += n * kPageTokens;
  }
}

template <class Stored>
void one_split(const AttentionTask& task, const Scratch& s, int64_t split) {
  const int64_t split_begin = split * kSplitTokens;
  const int64_t limit = smaller(split_begin + kSplitTokens, task.first_position + task.num_rows);
  const int64_t num_query_rows = task.num_rows * task.group;
  const int64_t page_first = visible(task, 0, split_begin, limit).begin / kPageTokens;
  const int64_t page_last = (limit + kPageTokens - 1) / kPageTokens;
  const bool is_one_tile = num_query_rows <= kTileRows;
  const bool is_direct = Stored::kIsFloat || is_one_tile;
  if (is_one_tile) {
    with_rows(num_query_rows,
              [&]<int R>() { few_rows_scores<R, Stored>(task, s, page_first, page_last, split_begin); });
  }
  for (int64_t page = is_one_tile ? page_last : page_first; page < page_last; ++page) {
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
    if (is_one_tile && begin >= whole.begin && begin + kPageTokens <= whole.end) {
      const int64_t num_pages = (whole.end - begin) / kPageTokens;
      with_rows(num_query_rows,
                [&]<int R>() { few_rows_values<R, Stored>(task, s, page, num_pages, page_last, begin - split_begin); });
      page += num_pages;
      continue;
    }
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
      float* to = task.partial + (split - task.split_begin) * task.split_stride + r * (task.head_dim + 2);
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
      const float* from = task.partial + (split - task.split_begin) * task.split_stride + r * (task.head_dim + 2);
      a::merge_state(merged, &m, &l, from, from[task.head_dim], from[task.head_dim + 1], task.head_dim);
    }
    float* out = task.out + r / task.group * task.out_stride + r % task.group * task.head_dim;
    a::finish(merged, l, task.head_dim, out);
  }
}

}  // namespace roost::ROOST_ISA
