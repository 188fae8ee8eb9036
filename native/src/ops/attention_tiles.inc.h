// The inner loops of attention: a tile of query rows, whose sums stay in registers, over a page of K or
// over pages of V, in the forms that pages are read in.
namespace roost::ROOST_ISA {
namespace attention {

constexpr int kTileRows = ROOST_ATTENTION_ROWS;          // query rows whose sums fit the registers
constexpr int64_t kScoreStride = kSplitTokens + kLanes;  // not a power of two: rows map to other cache sets

// f32 K [head_dim][16] or V [16][head_dim].
struct FloatPage {
  static constexpr bool kIsFloat = true;
  static constexpr bool kHasScales = false;
  static constexpr bool kIsPaired = false;
  const float* data;
  static ROOST_INLINE int64_t place(int64_t pair, int64_t width, int64_t at) { return 2 * pair * width + at; }
  static ROOST_INLINE FloatPage at_bytes(const uint8_t* page) { return {reinterpret_cast<const float*>(page)}; }
  ROOST_INLINE F32 first(int64_t pair, int64_t width, int64_t at) const {
    return F32::load(data + 2 * pair * width + at);
  }
  ROOST_INLINE F32 second(int64_t pair, int64_t width, int64_t at) const {
    return F32::load(data + (2 * pair + 1) * width + at);
  }
};

// f32 V of several pages, [head_dim / 16][num_tokens][16]: what a tile reads lies in one piece.
struct RunOfPages {
  const float* data;
  int64_t num_tokens;
  ROOST_INLINE F32 first(int64_t pair, int64_t, int64_t at) const {
    return F32::load(data + at * num_tokens + 2 * pair * kLanes);
  }
  ROOST_INLINE F32 second(int64_t pair, int64_t, int64_t at) const {
    return F32::load(data + at * num_tokens + (2 * pair + 1) * kLanes);
  }
};

// bf16 pairs [n / 2][width][2]; a 32-bit lane holds two neighbours of the outer dimension.
struct PairPage {
  static constexpr bool kIsFloat = false;
  static constexpr bool kHasScales = false;
  static constexpr bool kIsPaired = true;
  const uint8_t* data;
  static ROOST_INLINE int64_t place(int64_t pair, int64_t width, int64_t at) { return 4 * (pair * width + at); }
  static ROOST_INLINE PairPage at_bytes(const uint8_t* page) { return {page}; }
  ROOST_INLINE I32 lanes(int64_t pair, int64_t width, int64_t at) const {
    return I32::load(reinterpret_cast<const int32_t*>(data) + pair * width + at);
  }
  ROOST_INLINE F32 first(int64_t pair, int64_t width, int64_t at) const {
    return lanes(pair, width, at).shift_left<16>().as_f32();
  }
  ROOST_INLINE F32 second(int64_t pair, int64_t width, int64_t at) const {
    return (lanes(pair, width, at) & I32::splat(static_cast<int32_t>(0xffff0000u))).as_f32();
  }
};

// int8 codes, laid out like f32.
struct CodePage {
  static constexpr bool kIsFloat = false;
  static constexpr bool kHasScales = true;
  static constexpr bool kIsPaired = false;
  const int8_t* data;
  static ROOST_INLINE int64_t place(int64_t pair, int64_t width, int64_t at) { return 2 * pair * width + at; }
  static ROOST_INLINE CodePage at_bytes(const uint8_t* page) { return {reinterpret_cast<const int8_t*>(page)}; }
  ROOST_INLINE F32 first(int64_t pair, int64_t width, int64_t at) const {
    return I32::load_i8(data + 2 * pair * width + at).to_f32();
  }
  ROOST_INLINE F32 second(int64_t pair, int64_t width, int64_t at) const {
    return I32::load_i8(data + (2 * pair + 1) * width + at).to_f32();
  }
};

// A page read in place while another one, that is read later, comes into the cache line by line: all its
// lines at once would be more than the core can wait for.
template <class Stored>
struct FetchingPage {
  Stored page;
  Stored next;
  ROOST_INLINE F32 first(int64_t pair, int64_t width, int64_t at) const {
    prefetch(next.data + Stored::place(pair, width, at));
    return page.first(pair, width, at);
  }
  ROOST_INLINE F32 second(int64_t pair, int64_t width, int64_t at) const {
    if constexpr (!Stored::kIsPaired) prefetch(next.data + Stored::place(pair, width, at) + width);
    return page.second(pair, width, at);
  }
};

// Codes of K with the scales of their groups, [groups][16].
template <class CodesOfK>
struct KeyPage {
  CodesOfK codes;
  const float* scales;
};

// Vectors side by side (pages of K, or 16 columns of V) whose sums a tile of R rows holds beside its
// rows: a few rows alone would wait for each other's multiplications.
template <int R>
constexpr int kTileVectors = 4 * R <= kTileRows   ? 4
                             : 2 * R <= kTileRows ? 2
                                                  : 1;

// What was read through the pointer is not kept in registers, which are for the sums: reading is cheap.
ROOST_INLINE void read_again(const float*& p) { asm("" : "+r"(p)); }

// sum[i][r][0..15] += q[r] · k of the 16 tokens of page i, over the pairs [begin, end) of head_dim
template <int R, int N, class Page>
ROOST_INLINE void add_products(const float* q, int64_t head_dim, const Page* k, int64_t begin, int64_t end,
                               F32 (&sum)[N][R]) {
  for (int64_t pair = begin; pair < end; ++pair) {
    const float* x = q + 2 * pair;
#pragma GCC unroll 4
    for (int i = 0; i < N; ++i) {
      const F32 first = k[i].first(pair, kLanes, 0);
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r) sum[i][r] = fma(F32::splat(x[r * head_dim]), first, sum[i][r]);
      if constexpr (N > 1) read_again(x);
    }
#pragma GCC unroll 4
    for (int i = 0; i < N; ++i) {
      const F32 second = k[i].second(pair, kLanes, 0);
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r) sum[i][r] = fma(F32::splat(x[r * head_dim + 1]), second, sum[i][r]);
      if constexpr (N > 1) read_again(x);
    }
  }
}

template <int R, int N>
ROOST_INLINE void clear(F32 (&sum)[N][R]) {
#pragma GCC unroll 4
  for (int i = 0; i < N; ++i) {
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) sum[i][r] = F32::zero();
  }
}

// scores[r][0..16N) = q[r] · k of the tokens of N pages
template <int R, int N, class Page>
ROOST_INLINE void tile_scores(const float* q, int64_t head_dim, const Page* k, float* scores) {
  F32 sum[N][R];
  clear(sum);
  add_products<R, N>(q, head_dim, k, 0, head_dim / 2, sum);
#pragma GCC unroll 4
  for (int i = 0; i < N; ++i) {
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) sum[i][r].store(scores + r * kScoreStride + i * kLanes);
  }
}

// The same over codes: what a group adds is multiplied by its scale, from the first group to the last.
template <int R, int N, class CodesOfK>
ROOST_INLINE void tile_scores(const float* q, int64_t head_dim, const KeyPage<CodesOfK>* k, float* scores) {
  CodesOfK codes[N];
  for (int i = 0; i < N; ++i) codes[i] = k[i].codes;
  for (int64_t begin = 0; begin < head_dim; begin += kKeyGroup) {
    const int64_t end = begin + kKeyGroup < head_dim ? begin + kKeyGroup : head_dim;
    F32 sum[N][R];
    clear(sum);
    add_products<R, N>(q, head_dim, codes, begin / 2, end / 2, sum);
#pragma GCC unroll 4
    for (int i = 0; i < N; ++i) {
      const F32 scale = F32::load(k[i].scales + begin / kKeyGroup * kPageTokens);
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r) {
        float* score = scores + r * kScoreStride + i * kLanes;
        (begin == 0 ? sum[i][r] * scale : fma(sum[i][r], scale, F32::load(score))).store(score);
      }
    }
  }
}

// sum[i][r] += p[r][t] · v[t] for the token t of `pair` that kIsSecond says; i counts 16 columns from `at` on
template <int R, int N, bool kIsSecond, class Page>
ROOST_INLINE void add_token(const float* p, int64_t head_dim, Page v, int64_t pair, int64_t at, F32 (&sum)[N][R]) {
#pragma GCC unroll 4
  for (int i = 0; i < N; ++i) {
    const int64_t column = at + i * kLanes;
    const F32 x = kIsSecond ? v.second(pair, head_dim, column) : v.first(pair, head_dim, column);
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      sum[i][r] = fma(F32::splat(p[r * kScoreStride + 2 * pair + (kIsSecond ? 1 : 0)]), x, sum[i][r]);
    }
    if constexpr (N > 1) read_again(p);
  }
}

// sums[r][at …] += Σ_t p[r][t] · v[t] over the tokens [begin, end) of each page, which are one or, if
// consecutive, several in a row
template <int R, int N, class Page>
ROOST_INLINE void add_values(const float* p, int64_t head_dim, const Page* pages, int64_t num_pages, int64_t begin,
                             int64_t end, int64_t at, float* sums) {
  F32 sum[N][R];
#pragma GCC unroll 4
  for (int i = 0; i < N; ++i) {
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) sum[i][r] = F32::load(sums + r * head_dim + at + i * kLanes);
  }
  for (int64_t page = 0; page < num_pages; ++page, p += kPageTokens) {
    const Page v = pages[page];
    int64_t pair = begin / 2;
    if (begin % 2 != 0 && begin < end) add_token<R, N, true>(p, head_dim, v, pair++, at, sum);
    for (; 2 * pair + 1 < end; ++pair) {
      add_token<R, N, false>(p, head_dim, v, pair, at, sum);
      add_token<R, N, true>(p, head_dim, v, pair, at, sum);
    }
    if (2 * pair < end) add_token<R, N, false>(p, head_dim, v, pair, at, sum);
  }
#pragma GCC unroll 4
  for (int i = 0; i < N; ++i) {
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) sum[i][r].store(sums + r * head_dim + at + i * kLanes);
  }
}

// The same for all columns.
template <int R, class Page>
ROOST_INLINE void tile_values(const float* p, int64_t head_dim, const Page* pages, int64_t num_pages, int64_t begin,
                              int64_t end, float* sums) {
  constexpr int N = kTileVectors<R>;
  int64_t at = 0;
  for (; at + N * kLanes <= head_dim; at += N * kLanes) {
    add_values<R, N>(p, head_dim, pages, num_pages, begin, end, at, sums);
  }
  if constexpr (N > 1) {
    for (; at < head_dim; at += kLanes) add_values<R, 1>(p, head_dim, pages, num_pages, begin, end, at, sums);
  }
}

// num_rows ≤ kTileRows as a template argument: fn.template operator()<R>()
template <int R = kTileRows, class Fn>
ROOST_INLINE void with_rows(int64_t num_rows, const Fn& fn) {
  if constexpr (R > 0) {
    if (num_rows == R) return fn.template operator()<R>();
    with_rows<R - 1>(num_rows, fn);
  }
}

template <class Page>
void scores_of(int64_t num_rows, const float* q, int64_t head_dim, Page k, float* scores) {
  with_rows(num_rows, [&]<int R>() { tile_scores<R, 1>(q, head_dim, &k, scores); });
}

template <class Page>
void values_of(int64_t num_rows, const float* p, int64_t head_dim, Page v, int64_t begin, int64_t end, float* sums) {
  with_rows(num_rows, [&]<int R>() { tile_values<R>(p, head_dim, &v, 1, begin, end, sums); });
}

// A page's K [head_dim][16] or V [16][head_dim], as it is stored → f32 [n][width]
template <class Stored>
ROOST_INLINE void widen(Stored page, int64_t n, int64_t width, float* to) {
  for (int64_t pair = 0; pair < n / 2; ++pair) {
    for (int64_t at = 0; at < width; at += kLanes) {
      page.first(pair, width, at).store(to + 2 * pair * width + at);
      page.second(pair, width, at).store(to + (2 * pair + 1) * width + at);
    }
  }
}

// V of one page → its place in a run
template <class Stored>
ROOST_INLINE void widen_into_run(Stored page, int64_t head_dim, int64_t num_tokens, float* to) {
  for (int64_t at = 0; at < head_dim; at += kLanes, to += num_tokens * kLanes) {
    for (int64_t pair = 0; pair < kPageTokens / 2; ++pair) {
      page.first(pair, head_dim, at).store(to + 2 * pair * kLanes);
      page.second(pair, head_dim, at).store(to + (2 * pair + 1) * kLanes);
    }
  }
}

}  // namespace attention
}  // namespace roost::ROOST_ISA
