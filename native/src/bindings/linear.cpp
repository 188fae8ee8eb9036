#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "arrays.h"
#include "bindings.h"
#include "kernels.h"
#include "pack.h"
#include "program.h"

namespace nb = nanobind;

namespace roost {
namespace {

const LinearKernels& linear_kernels_of(const std::string& isa) { return *kernels_of(isa_of(isa)).linear; }

// The packed format of a file type whose matrix is [rows, cols].
WeightFormat checked_format(int ggml_type, int64_t rows, int64_t cols) {
  const auto format = format_of_ggml(ggml_type);
  if (!format) refuse("ggml_type", std::to_string(ggml_type) + " is not one that is packed");
  if (rows <= 0 || cols <= 0) refuse("rows and cols", "must be positive");
  const int64_t block_cols = source_block_cols(static_cast<GgmlType>(ggml_type));
  if (cols % block_cols != 0) refuse("cols", "must be a multiple of " + std::to_string(block_cols));
  return *format;
}

uint8_t* packed_target(const WritableArray& dst, WeightFormat format, int64_t rows, int64_t cols) {
  uint8_t* to = writable<uint8_t>(dst, "dst", 1);
  check_length(dst.size(), "dst", packed_nbytes(format, rows, cols));
  check_aligned(to, "dst");
  return to;
}

int64_t packed_nbytes_of(int ggml_type, int64_t rows, int64_t cols) {
  return packed_nbytes(checked_format(ggml_type, rows, cols), rows, cols);
}

float pack_array(int ggml_type, const ReadOnlyArray& src, int64_t rows, int64_t cols, const WritableArray& dst) {
  const WeightFormat format = checked_format(ggml_type, rows, cols);
  const auto type = static_cast<GgmlType>(ggml_type);
  const uint8_t* from = read_only<uint8_t>(src, "src", 1);
  check_length(src.size(), "src", rows * source_row_nbytes(type, cols));
  uint8_t* to = packed_target(dst, format, rows, cols);
  nb::gil_scoped_release release;
  return pack(type, from, rows, cols, to);
}

float quantize_matrix(const ReadOnlyArray& src, int bits, const WritableArray& dst) {
  if (bits != 4 && bits != 8) refuse("bits", "must be 4 or 8");
  const float* values = read_only<float>(src, "src", 2);
  const auto rows = static_cast<int64_t>(src.shape(0));
  const auto cols = static_cast<int64_t>(src.shape(1));
  if (rows == 0 || cols == 0 || cols % kGroup != 0) refuse("src", "must have rows, and columns in groups of 32");
  uint8_t* to = packed_target(dst, quantised_format(bits), rows, cols);
  nb::gil_scoped_release release;
  if (!std::all_of(values, values + rows * cols, [](float v) { return std::isfinite(v); })) {
    nb::gil_scoped_acquire acquire;
    refuse("src", "holds values that are not finite");
  }
  const auto* from = reinterpret_cast<const uint8_t*>(values);
  const float scale = choose_quantised_scale(GgmlType::kF32, from, rows, cols, bits);
  quantise_rows(GgmlType::kF32, from, rows, cols, bits, scale, to);
  return scale;
}

PackedMatrix packed_matrix(int format, const ReadOnlyArray& packed, int64_t rows, int64_t cols, float scale) {
  if (format < 0 || format > static_cast<int>(WeightFormat::kU8)) refuse("format", "is not a packed format");
  const auto known = static_cast<WeightFormat>(format);
  if (rows <= 0 || cols <= 0) refuse("rows and cols", "must be positive");
  if (is_quantised(known) && cols % kGroup != 0) refuse("cols", "must be a multiple of 32");
  const uint8_t* data = read_only<uint8_t>(packed, "packed", 1);
  check_length(packed.size(), "packed", packed_nbytes(known, rows, cols));
  check_aligned(data, "packed");
  return {known, rows, cols, scale, data};
}

void check_terms(int num_terms) {
  if (num_terms != 1 && num_terms != 2) refuse("num_terms", "must be 1 or 2");
}

void linear_rows(const LinearKernels& kernels, const PackedMatrix& w, const float* x, int64_t num_rows, int num_terms,
                 float* y, const Epilogue& epilogue) {
  const int64_t num_blocks = (w.rows + kBlockRows - 1) / kBlockRows;
  if (!is_quantised(w.format)) {
    kernels.linear_float(w, x, w.cols, num_rows, y, w.rows, 0, num_blocks, epilogue);
    return;
  }
  const int64_t row_groups = w.cols / kGroup * num_terms;
  std::vector<QuantGroup> groups(static_cast<size_t>(num_rows * row_groups));
  for (int64_t t = 0; t < num_rows; ++t)
    kernels.quantize_row(x + t * w.cols, w.cols, num_terms, &groups[static_cast<size_t>(t * row_groups)]);
  kernels.linear_quant(w, {groups.data(), w.cols, num_terms}, num_rows, y, w.rows, 0, num_blocks, epilogue);
}

nb::object linear(const std::string& isa, int format, const ReadOnlyArray& packed, int64_t rows, int64_t cols,
                  float scale, const ReadOnlyArray& x, const std::optional<ReadOnlyArray>& bias,
                  const std::optional<ReadOnlyArray>& accumulate, int num_terms) {
  check_terms(num_terms);
  const LinearKernels& kernels = linear_kernels_of(isa);
  const PackedMatrix w = packed_matrix(format, packed, rows, cols, scale);
  const float* from = read_only<float>(x, "x", 2);
  check_length(x.shape(1), "a row of x", cols);
  const auto num_rows = static_cast<int64_t>(x.shape(0));
  Epilogue epilogue = {nullptr, accumulate.has_value()};
  if (bias) {
    epilogue.bias = read_only<float>(*bias, "bias", 1);
    check_length(bias->size(), "bias", rows);
  }
  auto y = std::make_unique<float[]>(static_cast<size_t>(num_rows * rows));
  if (accumulate) {
    const float* before = read_only<float>(*accumulate, "accumulate", 2);
    check_length(accumulate->size(), "accumulate", num_rows * rows);
    std::copy_n(before, num_rows * rows, y.get());
  }
  {
    nb::gil_scoped_release release;
    linear_rows(kernels, w, from, num_rows, num_terms, y.get(), epilogue);
  }
  return owned_array(std::move(y), {static_cast<size_t>(num_rows), static_cast<size_t>(rows)});
}

nb::object dequantize(const std::string& isa, int format, const ReadOnlyArray& packed, int64_t rows, int64_t cols,
                      float scale) {
  const LinearKernels& kernels = linear_kernels_of(isa);
  const PackedMatrix w = packed_matrix(format, packed, rows, cols, scale);
  auto values = std::make_unique<float[]>(static_cast<size_t>(rows * cols));
  {
    nb::gil_scoped_release release;
    for (int64_t row = 0; row < rows; ++row) kernels.dequantize_row(w, row, values.get() + row * cols);
  }
  return owned_array(std::move(values), {static_cast<size_t>(rows), static_cast<size_t>(cols)});
}

// Quantised rows, spelled out: q in the order of the inputs.
struct SpelledRows {
  explicit SpelledRows(size_t groups)
      : num_groups(groups),
        q(std::make_unique<int32_t[]>(groups * kGroup)),
        scale(std::make_unique<float[]>(groups)),
        scaled_sum(std::make_unique<float[]>(groups)),
        sum(std::make_unique<int32_t[]>(groups)),
        first_sum(std::make_unique<int32_t[]>(groups)) {}

  template <class Group, class Place>
  void take(const Group* groups, const Place& place_of_input) {
    for (size_t g = 0; g < num_groups; ++g) {
      for (size_t i = 0; i < kGroup; ++i) q[g * kGroup + i] = groups[g].q[place_of_input(i)];
      scale[g] = groups[g].scale;
      scaled_sum[g] = groups[g].scaled_sum;
      sum[g] = groups[g].sum;
      first_sum[g] = groups[g].first_sum;
    }
  }

  size_t num_groups;
  std::unique_ptr<int32_t[]> q;
  std::unique_ptr<float[]> scale;
  std::unique_ptr<float[]> scaled_sum;
  std::unique_ptr<int32_t[]> sum;
  std::unique_ptr<int32_t[]> first_sum;
};

nb::tuple quantize_rows(const std::string& isa, const ReadOnlyArray& x, int num_terms) {
  check_terms(num_terms);
  const LinearKernels& kernels = linear_kernels_of(isa);
  const float* from = read_only<float>(x, "x", 2);
  const size_t rows = x.shape(0);
  const size_t cols = x.shape(1);
  if (cols % kGroup != 0) refuse("x", "must have columns in groups of 32");
  const size_t row_groups = cols / kGroup;
  const size_t row_places = row_groups * static_cast<size_t>(num_terms);
  std::vector<QuantGroup> groups(rows * row_places);
  for (size_t t = 0; t < rows; ++t) {
    kernels.quantize_row(from + t * cols, static_cast<int64_t>(cols), num_terms, &groups[t * row_places]);
  }
  SpelledRows spelled(rows * row_groups);
  if (num_terms == 1) {
    spelled.take(groups.data(), [](size_t i) { return i; });
  } else {
    spelled.take(reinterpret_cast<const FineGroup*>(groups.data()),
                 [](size_t i) { return i / 4 * 4 + i % 2 * 2 + i % 4 / 2; });
  }
  return nb::make_tuple(owned_array(std::move(spelled.q), {rows, cols}),
                        owned_array(std::move(spelled.scale), {rows, row_groups}),
                        owned_array(std::move(spelled.scaled_sum), {rows, row_groups}),
                        owned_array(std::move(spelled.sum), {rows, row_groups}),
                        owned_array(std::move(spelled.first_sum), {rows, row_groups}));
}

}  // namespace

void bind_linear(nb::module_& m) {
  m.def("packed_nbytes", packed_nbytes_of, nb::arg("ggml_type"), nb::arg("rows"), nb::arg("cols"),
        "Bytes of a packed matrix of this GGML type.");
  m.def("pack", pack_array, nb::arg("ggml_type"), nb::arg("src"), nb::arg("rows"), nb::arg("cols"), nb::arg("dst"),
        "Raw GGML blocks (u8) → dst (u8, 64-byte aligned, packed_nbytes). Returns the matrix's scale.");
  m.def("quantize_matrix", quantize_matrix, nb::arg("src"), nb::arg("bits"), nb::arg("dst"),
        "f32 [rows, cols] → dst, packed like Q8_0 (8 bits) or Q4_1 (4 bits). Returns the matrix's scale.");
  m.def("linear", linear, nb::arg("isa"), nb::arg("format"), nb::arg("packed"), nb::arg("rows"), nb::arg("cols"),
        nb::arg("scale"), nb::arg("x"), nb::arg("bias") = nb::none(), nb::arg("accumulate") = nb::none(),
        nb::arg("num_terms") = 1, "x f32 [t, cols] → f32 [t, rows] (+ bias) (+ accumulate), on the calling thread.");
  m.def("dequantize", dequantize, nb::arg("isa"), nb::arg("format"), nb::arg("packed"), nb::arg("rows"),
        nb::arg("cols"), nb::arg("scale"), "The packed matrix as f32 [rows, cols].");
  m.def("quantize_rows", quantize_rows, nb::arg("isa"), nb::arg("x"), nb::arg("num_terms") = 1,
        "x f32 [t, cols] → q i32 [t, cols], and a group of 32: scale, scaled_sum (f32), sum, first_sum (i32).");
}

}  // namespace roost
