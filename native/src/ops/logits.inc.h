// Passes over a row of logits, for the sampler. cols is any number; tails are partial vectors.
namespace roost::ROOST_ISA {

// Blocks keep their maximum; the block that raised it is searched for the first index at the end,
// so the row is read once.
RowScan scan(const float* x, int64_t cols) {
  constexpr int64_t kBlock = 256;
  float best = -__builtin_inff();
  int64_t best_block = 0;
  F32 finite = F32::zero();  // stays zero: inf · 0 and NaN · 0 are NaN
  for (int64_t begin = 0; begin < cols; begin += kBlock) {
    const int64_t end = begin + kBlock < cols ? begin + kBlock : cols;
    F32 top = F32::splat(-__builtin_inff());
    int64_t c = begin;
    for (; c + kLanes <= end; c += kLanes) {
      const F32 v = F32::load(x + c);
      finite = fma(v, F32::zero(), finite);
      top = max(v, top);
    }
    float block_max = top.max_lane();
    if (c < end) {
      finite = fma(F32::load_partial(x + c, end - c), F32::zero(), finite);
      for (; c < end; ++c) block_max = x[c] > block_max ? x[c] : block_max;
    }
    if (block_max > best) {
      best = block_max;
      best_block = begin;
    }
  }
  int64_t index = best_block;
  const int64_t limit = best_block + kBlock < cols ? best_block + kBlock : cols;
  while (index < limit && x[index] != best) ++index;
  if (index == limit) index = best_block;  // all NaN or -inf
  return {best, static_cast<int32_t>(index), finite.sum() == 0.0f};
}

double sum_exp(const float* x, int64_t cols, float max, float inverse_temperature) {
  constexpr int64_t kBlock = 1024;
  const F32 top = F32::splat(max);
  const F32 factor = F32::splat(inverse_temperature);
  double total = 0.0;
  for (int64_t begin = 0; begin < cols; begin += kBlock) {
    const int64_t end = begin + kBlock < cols ? begin + kBlock : cols;
    F32 sum = F32::zero();
    int64_t c = begin;
    for (; c + kLanes <= end; c += kLanes) {
      const F32 v = F32::load(x + c);
      // exp never gives zero: a banned token's -inf must.
      const Mask is_there = less(F32::splat(-__builtin_inff()), v);
      sum = sum + ROOST_ISA::select(is_there, exp((v - top) * factor), F32::zero());
    }
    if (c < end) {
      const F32 v = F32::load_partial(x + c, end - c);
      const Mask is_there = less(F32::splat(-__builtin_inff()), v) & Mask::first(end - c);
      sum = sum + ROOST_ISA::select(is_there, exp((v - top) * factor), F32::zero());
    }
    total += static_cast<double>(sum.sum());
  }
  return total;
}

int64_t select_range(const float* x, int64_t cols, float low, float high, float max, float inverse_temperature,
                     int32_t* ids, float* weights) {
  const F32 top = F32::splat(max);
  const F32 factor = F32::splat(inverse_temperature);
  const F32 lowest = F32::splat(low);
  const F32 highest = F32::splat(high);
  int64_t count = 0;
  for (int64_t c = 0; c < cols; c += kLanes) {
    const int64_t n = cols - c < kLanes ? cols - c : kLanes;
    const F32 v = n == kLanes ? F32::load(x + c) : F32::load_partial(x + c, n);
    uint32_t bits = (less(v, highest) & Mask::first(n)).bits() & ~less(v, lowest).bits();
    if (bits == 0) continue;
    float weight[kLanes];
    exp((v - top) * factor).store(weight);
    while (bits != 0) {
      const int lane = __builtin_ctz(bits);
      bits &= bits - 1;
      ids[count] = static_cast<int32_t>(c + lane);
      weights[count++] = weight[lane];
    }
  }
  return count;
}

}  // namespace roost::ROOST_ISA
