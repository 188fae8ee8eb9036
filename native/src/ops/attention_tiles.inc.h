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
  const float* data;
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
  const uint8_t* data;
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
  const int8_t* data;
  static ROOST_INLINE CodePage at_bytes(const uint8_t* page) { return {reinterpret_cast<const int8_t*>(page)}; }
  ROOST_INLINE F32 first(int64_t pair, int64_t width, int64_t at) const {
    return I32::load_i8(data + 2 * pair * width + at).to_f32();
  }
  ROOST_INLINE F32 second(int64_t pair, int64_t width, int64_t at) const {
    return I32::load_i8(data + (2 * pair + 1) * width + at).to_f32();
  }
};

// Codes of K with the scales of their groups, [groups][16].
template <class CodesOfK>
struct KeyPage {
  CodesOfK codes;
  const float* scales;
};

// sum[r][0..15] += q[r] · k of the page's 16 tokens, over the pairs [begin, end) of head_dim
template <int R, class Page>
ROOST_INLINE void add_products(const float* q, int64_t head_dim, Page k, int64_t begin, int64_t end, F32 (&sum)[R]) {
  for (int64_t pair = begin; pair < end; ++pair) {
    const F32 first = k.first(pair, kLanes, 0);
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) sum[r] = fma(F32::splat(q[r * head_dim + 2 * pair]), first, sum[r]);
    const F32 second = k.second(pair, kLanes, 0);
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) sum[r] = fma(F32::splat(q[r * head_dim + 2 * pair + 1]), second, sum[r]);
  }
}

// scores[r][0..15] = q[r] · k of the page's 16 tokens
template <int R, class Page>
ROOST_INLINE void tile_scores(const float* q, int64_t head_dim, Page k, float* scores) {
  F32 sum[R];
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) sum[r] = F32::zero();
  add_products<R>(q, head_dim, k, 0, head_dim / 2, sum);
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) sum[r].store(scores + r * kScoreStride);
}

// The same over codes: what a group adds is multiplied by its scale, from the first group to the last.
template <int R, class CodesOfK>
ROOST_INLINE void tile_scores(const float* q, int64_t head_dim, KeyPage<CodesOfK> k, float* scores) {
  for (int64_t begin = 0; begin < head_dim; begin += kKeyGroup) {
    const int64_t end = begin + kKeyGroup < head_dim ? begin + kKeyGroup : head_dim;
    F32 sum[R];
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) sum[r] = F32::zero();
    add_products<R>(q, head_dim, k.codes, begin / 2, end / 2, sum);
    const F32 scale = F32::load(k.scales + begin / kKeyGroup * kPageTokens);
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      float* score = scores + r * kScoreStride;
      (begin == 0 ? sum[r] * scale : fma(sum[r], scale, F32::load(score))).store(score);
    }
  }
}

// sums[r] += Σ_t p[r][t] · v[t] over the tokens [begin, end) of a page or a run
template <int R, class Page>
ROOST_INLINE void tile_values(const float* p, int64_t head_dim, Page v, int64_t begin, int64_t end, float* sums) {
  for (int64_t at = 0; at < head_dim; at += kLanes) {
    F32 sum[R];
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) sum[r] = F32::load(sums + r * head_dim + at);
    int64_t pair = begin / 2;
    if (begin % 2 != 0 && begin < end) {
      const F32 second = v.second(pair, head_dim, at);
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r) sum[r] = fma(F32::splat(p[r * kScoreStride + begin]), second, sum[r]);
      ++pair;
    }
    for (; 2 * pair + 1 < end; ++pair) {
      const float* weights = p + 2 * pair;
      const F32 first = v.first(pair, head_dim, at);
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r) sum[r] = fma(F32::splat(weights[r * kScoreStride]), first, sum[r]);
      const F32 second = v.second(pair, head_dim, at);
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r) sum[r] = fma(F32::splat(weights[r * kScoreStride + 1]), second, sum[r]);
    }
    if (2 * pair < end) {
      const F32 first = v.first(pair, head_dim, at);
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r) sum[r] = fma(F32::splat(p[r * kScoreStride + 2 * pair]), first, sum[r]);
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) sum[r].store(sums + r * head_dim + at);
  }
}

template <class Page, int R = kTileRows>
void scores_of(int64_t num_rows, const float* q, int64_t head_dim, Page k, float* scores) {
  if constexpr (R > 0) {
    if (num_rows == R) return tile_scores<R>(q, head_dim, k, scores);
    scores_of<Page, R - 1>(num_rows, q, head_dim, k, scores);
  }
}

template <class Page, int R = kTileRows>
void values_of(int64_t num_rows, const float* p, int64_t head_dim, Page v, int64_t begin, int64_t end, float* sums) {
  if constexpr (R > 0) {
    if (num_rows == R) return tile_values<R>(p, head_dim, v, begin, end, sums);
    values_of<Page, R - 1>(num_rows, p, head_dim, v, begin, end, sums);
  }
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
