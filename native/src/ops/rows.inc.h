// Ops on one row. A row's tail is one partial vector; its lanes beyond the end are zero and add
// nothing to sums.
namespace roost::ROOST_ISA {

// y[c] = x[c] · w[c] / sqrt(mean_c(x²) + eps)
void rms_norm(const float* x, const float* w, float* y, int64_t cols, float eps) {
  const int64_t body = cols - cols % kLanes;
  F32 squares = F32::zero();
  for (int64_t c = 0; c < body; c += kLanes) {
    const F32 v = F32::load(x + c);
    squares = fma(v, v, squares);
  }
  if (body < cols) {
    const F32 v = F32::load_partial(x + body, cols - body);
    squares = fma(v, v, squares);
  }
  const float mean = squares.sum() / static_cast<float>(cols);
  const F32 factor = F32::splat(1.0f / __builtin_sqrtf(mean + eps));
  for (int64_t c = 0; c < body; c += kLanes) (F32::load(x + c) * factor * F32::load(w + c)).store(y + c);
  if (body < cols) {
    const int64_t n = cols - body;
    (F32::load_partial(x + body, n) * factor * F32::load_partial(w + body, n)).store_partial(y + body, n);
  }
}

// silu(g) = g · σ(g), gelu_tanh(g) = g · σ(2 · √(2/π) · (g + 0.044715 g³)), σ(z) = 1 / (1 + e^−z):
// the tanh of the usual form, tanh(z) = 2 σ(2z) − 1, drops out.
ROOST_INLINE F32 activate(F32 g, Activation activation) {
  F32 z = g;
  if (activation == Activation::kGeluTanh) {
    const F32 cubic = fma(g * g * F32::splat(0.044715f), g, g);
    z = cubic * F32::splat(1.59576912f);
  }
  return g / (F32::splat(1.0f) + exp(-z));
}

void gated(const float* gate, const float* up, float* y, int64_t cols, Activation activation) {
  const int64_t body = cols - cols % kLanes;
  for (int64_t c = 0; c < body; c += kLanes) {
    (activate(F32::load(gate + c), activation) * F32::load(up + c)).store(y + c);
  }
  if (body < cols) {
    const int64_t n = cols - body;
    const F32 g = activate(F32::load_partial(gate + body, n), activation);
    (g * F32::load_partial(up + body, n)).store_partial(y + body, n);
  }
}

void add(const float* x, const float* y, float* out, int64_t cols) {
  const int64_t body = cols - cols % kLanes;
  for (int64_t c = 0; c < body; c += kLanes) (F32::load(x + c) + F32::load(y + c)).store(out + c);
  for (int64_t c = body; c < cols; ++c) out[c] = x[c] + y[c];
}

void scale(const float* x, float factor, float* y, int64_t cols) {
  const int64_t body = cols - cols % kLanes;
  for (int64_t c = 0; c < body; c += kLanes) (F32::load(x + c) * F32::splat(factor)).store(y + c);
  for (int64_t c = body; c < cols; ++c) y[c] = x[c] * factor;
}

// table: [rotary_dim / 2][2], cos and sin
void rope(const float* x, float* y, const float* table, int64_t head_dim, int64_t rotary_dim, RopeStyle style) {
  const int64_t half = rotary_dim / 2;
  const bool is_half = style == RopeStyle::kHalf;
  for (int64_t i = 0; i < half; ++i) {
    const int64_t first = is_half ? i : 2 * i;
    const int64_t second = is_half ? i + half : 2 * i + 1;
    const float a = x[first];
    const float b = x[second];
    const float cosine = table[2 * i];
    const float sine = table[2 * i + 1];
    // Written out as fused: GCC 12 turns the plain form of interleaved pairs into vfmaddsub, also
    // where contraction is off.
    y[first] = __builtin_fmaf(-b, sine, a * cosine);
    y[second] = __builtin_fmaf(a, sine, b * cosine);
  }
  for (int64_t c = rotary_dim; c < head_dim; ++c) y[c] = x[c];
}

}  // namespace roost::ROOST_ISA
