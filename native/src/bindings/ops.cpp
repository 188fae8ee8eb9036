// The row kernels one by one, so that tests can hold each against its judge.
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>

#include <cstdint>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include "bindings.h"
#include "program.h"

namespace nb = nanobind;

namespace roost {
namespace {

using Floats = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Result = nb::ndarray<nb::numpy, float, nb::ndim<1>>;
using Ids = nb::ndarray<nb::numpy, int32_t, nb::ndim<1>>;

const OpKernels& ops_of(const std::string& isa) { return *kernels_of(isa_of(isa)).ops; }

template <class T>
auto to_numpy(std::vector<T> values) {
  auto* held = new std::vector<T>(std::move(values));
  nb::capsule owner(held, [](void* p) noexcept { delete static_cast<std::vector<T>*>(p); });
  return nb::ndarray<nb::numpy, T, nb::ndim<1>>(held->data(), {held->size()}, owner);
}

int64_t size(const Floats& x) { return static_cast<int64_t>(x.shape(0)); }

void require_same(const Floats& x, const Floats& y) {
  if (x.shape(0) != y.shape(0)) throw std::invalid_argument("the rows differ in length");
}

Result rms_norm(const std::string& isa, const Floats& x, const Floats& w, float eps) {
  require_same(x, w);
  std::vector<float> y(x.shape(0));
  ops_of(isa).rms_norm(x.data(), w.data(), y.data(), size(x), eps);
  return to_numpy(std::move(y));
}

Result gated(const std::string& isa, const Floats& gate, const Floats& up, int32_t activation) {
  require_same(gate, up);
  std::vector<float> y(gate.shape(0));
  ops_of(isa).gated(gate.data(), up.data(), y.data(), size(gate), static_cast<Activation>(activation));
  return to_numpy(std::move(y));
}

Result add(const std::string& isa, const Floats& x, const Floats& y) {
  require_same(x, y);
  std::vector<float> out(x.shape(0));
  ops_of(isa).add(x.data(), y.data(), out.data(), size(x));
  return to_numpy(std::move(out));
}

// table: [rotary_dim / 2][2], cos and sin
Result rope(const std::string& isa, const Floats& x, const Floats& table, int32_t style) {
  if (table.shape(0) > x.shape(0) || table.shape(0) % 2 != 0) throw std::invalid_argument("the table is too long");
  std::vector<float> y(x.shape(0));
  ops_of(isa).rope(x.data(), y.data(), table.data(), size(x), size(table), static_cast<RopeStyle>(style));
  return to_numpy(std::move(y));
}

std::tuple<float, int32_t, bool> scan(const std::string& isa, const Floats& x) {
  const RowScan s = ops_of(isa).scan(x.data(), size(x));
  return {s.max, s.argmax, s.is_finite};
}

double sum_exp(const std::string& isa, const Floats& x, float max, float factor) {
  return ops_of(isa).sum_exp(x.data(), size(x), max, factor);
}

std::tuple<Ids, Result> select(const std::string& isa, const Floats& x, float low, float high, float max,
                               float factor) {
  std::vector<int32_t> ids(x.shape(0));
  std::vector<float> weights(x.shape(0));
  const int64_t n = ops_of(isa).select(x.data(), size(x), low, high, max, factor, ids.data(), weights.data());
  ids.resize(static_cast<size_t>(n));
  weights.resize(static_cast<size_t>(n));
  return {to_numpy(std::move(ids)), to_numpy(std::move(weights))};
}

}  // namespace

void bind_ops(nb::module_& m) {
  m.def("rms_norm", &rms_norm, "isa, x, weight, eps → y");
  m.def("gated", &gated, "isa, gate, up, activation (0 silu, 1 gelu_tanh) → y");
  m.def("add", &add, "isa, x, y → x + y");
  m.def("rope", &rope, "isa, x of one head, table [rotary_dim / 2][cos, sin], style → y");
  m.def("scan", &scan, "isa, x → maximum, its lowest index, whether all are finite");
  m.def("sum_exp", &sum_exp, "isa, x, max, factor → Σ exp((x − max) · factor)");
  m.def("select", &select, "isa, x, low, high, max, factor → ids and weights of low ≤ x < high");
  m.def("uniform", &uniform, "seed, position → [0, 1)");
}

}  // namespace roost
