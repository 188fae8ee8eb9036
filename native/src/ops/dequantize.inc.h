// One row of a packed matrix → f32: what the linear kernels multiply by.
//
//   with minimums: fma(scale, code, −minimum); symmetric: scale · (code − 2^(k−1)); then · matrix scale
namespace roost::ROOST_ISA {
namespace {

template <int kBits>
ROOST_INLINE int32_t code_at(const uint8_t* group, int64_t lane, int k) {
  const int step = k / 4;
  const int64_t byte = 4 * lane + k % 4;
  if constexpr (kBits == 8) {
    return group[64 * step + byte];
  } else {
    int32_t code = (group[64 * (step / 2) + byte] >> (4 * (step % 2))) & 0x0f;
    if constexpr (kBits == 5) code |= ((group[256 + byte] >> step) & 1) << 4;
    if constexpr (kBits == 6) code |= ((group[256 + 64 * (step / 4) + byte] >> (2 * (step % 4))) & 3) << 4;
    return code;
  }
}

template <WeightFormat kFormat>
void dequantize_quant_row(const PackedMatrix& w, int64_t row, float* out) {
  using Layout = LayoutOf<kFormat>;
  const int64_t num_groups = w.cols / kGroup;
  const int64_t lane = row % kBlockRows;
  const uint8_t* codes = w.data + row / kBlockRows * QuantBlock<Layout>::nbytes(num_groups);
  const uint8_t* scales = codes + num_groups * Layout::kCodeBytes;
  for (int64_t g = 0; g < num_groups; ++g, codes += Layout::kCodeBytes, scales += Layout::kScaleBytes) {
    const uint16_t* halves = reinterpret_cast<const uint16_t*>(scales) + lane;
    const float first = f16_to_f32(halves[0]);
    const float second = Layout::kScaleBytes == 64 ? f16_to_f32(halves[kBlockRows]) : 0.0f;
    for (int k = 0; k < kGroup; ++k) {
      const int32_t code = code_at<Layout::kBits>(codes, lane, k);
      float value;
      if constexpr (Layout::kMinimum) {
        value = __builtin_fmaf(first, static_cast<float>(code), -second);
      } else {
        const float scale = Layout::kHalves && k >= kGroup / 2 ? second : first;
        value = scale * static_cast<float>(code - (1 << (Layout::kBits - 1)));
      }
      out[g * kGroup + k] = value * w.scale;
    }
  }
}

void dequantize_float_row(const PackedMatrix& w, int64_t row, float* out) {
  const int64_t padded_cols = (w.cols + 1) / 2 * 2;
  const int64_t first = row / kBlockRows * padded_cols * kBlockRows;
  const int64_t lane = row % kBlockRows;
  const float* wide = reinterpret_cast<const float*>(w.data) + first;
  const uint16_t* narrow = reinterpret_cast<const uint16_t*>(w.data) + first;
  for (int64_t k = 0; k < w.cols; ++k) {
    float value;
    if (w.format == WeightFormat::kF32) {
      value = wide[k * kBlockRows + lane];
    } else if (w.format == WeightFormat::kF16) {
      value = f16_to_f32(narrow[k * kBlockRows + lane]);
    } else {
      value = bf16_to_f32(narrow[k / 2 * 2 * kBlockRows + 2 * lane + k % 2]);
    }
    out[k] = value * w.scale;
  }
}

void dequantize_row(const PackedMatrix& w, int64_t row, float* out) {
  switch (w.format) {
    case WeightFormat::kU4M:
      return dequantize_quant_row<WeightFormat::kU4M>(w, row, out);
    case WeightFormat::kU4:
      return dequantize_quant_row<WeightFormat::kU4>(w, row, out);
    case WeightFormat::kU5M:
      return dequantize_quant_row<WeightFormat::kU5M>(w, row, out);
    case WeightFormat::kU5:
      return dequantize_quant_row<WeightFormat::kU5>(w, row, out);
    case WeightFormat::kU6G16:
      return dequantize_quant_row<WeightFormat::kU6G16>(w, row, out);
    case WeightFormat::kU8:
      return dequantize_quant_row<WeightFormat::kU8>(w, row, out);
    case WeightFormat::kF32:
    case WeightFormat::kF16:
    case WeightFormat::kBF16:
      return dequantize_float_row(w, row, out);
  }
}

}  // namespace
}  // namespace roost::ROOST_ISA
