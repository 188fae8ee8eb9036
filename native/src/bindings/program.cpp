// Thread pool and programs. Weights stay in their numpy arrays, which the program holds on to.
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstring>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include "bindings.h"
#include "program.h"

namespace nb = nanobind;

namespace roost {
namespace {

template <class T, size_t Dims = 1>
using In = nb::ndarray<const T, nb::ndim<Dims>, nb::c_contig, nb::device::cpu>;
template <class T, size_t Dims = 1>
using Out = nb::ndarray<T, nb::ndim<Dims>, nb::c_contig, nb::device::cpu>;

using ViewArgs = std::tuple<int64_t, int64_t, int64_t>;
using PartArgs = std::tuple<ViewArgs, int64_t, int64_t, float, int64_t>;
using SegmentArgs = std::tuple<int32_t, int64_t, int64_t, float, In<uint8_t>>;

BufferView view_of(const ViewArgs& v) { return {std::get<0>(v), std::get<1>(v), std::get<2>(v)}; }

void require(bool is_met, const char* what) {
  if (!is_met) throw std::invalid_argument(what);
}

KvType kv_type_of(const std::string& name) {
  if (name == "bf16") return KvType::kBf16;
  if (name == "f32") return KvType::kF32;
  require(name == "int8", "the KV dtype must be bf16, f32 or int8");
  return KvType::kInt8;
}

struct Pool {
  explicit Pool(int num_threads) : threads(std::make_shared<ThreadPool>(num_threads)) {}
  std::shared_ptr<ThreadPool> threads;
};

class BoundProgram {
 public:
  BoundProgram(const std::string& isa, const Pool& pool, std::tuple<int64_t, int64_t, int64_t> limits,
               const std::tuple<int64_t, int64_t, int64_t, int64_t, std::string>& kv)
      : pool_(pool.threads) {
    const auto [max_rows, max_logits_rows, max_context] = limits;
    const auto& [pages, layers, kv_heads, head_dim, dtype] = kv;
    require(max_rows > 0 && max_logits_rows > 0 && max_context > 0, "a program's limits must be positive");
    require(pages > 0 && layers > 0 && kv_heads > 0 && head_dim > 0, "the KV shape must be positive");
    require(head_dim % 16 == 0, "head_dim must be a multiple of 16");
    auto cache = std::make_unique<KvCache>(pages, layers, kv_heads, head_dim, kv_type_of(dtype));
    program_ = std::make_unique<Program>(isa_of(isa), *pool_, Limits{max_rows, max_logits_rows, max_context},
                                         std::move(cache));
  }

  Program& open() const {
    require(program_ != nullptr, "the program is closed");
    return *program_;
  }

  void keep(In<uint8_t> weights) { weights_.push_back(std::move(weights)); }
  void keep(In<float> values) { vectors_.push_back(std::move(values)); }
  std::mutex& mutex() { return mutex_; }

  void close() {
    {
      nb::gil_scoped_release release;  // a run in progress ends first
      const std::lock_guard lock(mutex_);
      program_.reset();
    }
    weights_.clear();
    vectors_.clear();
  }

 private:
  std::shared_ptr<ThreadPool> pool_;
  std::unique_ptr<Program> program_;
  std::vector<In<uint8_t>> weights_;  // alive as long as the program reads them
  std::vector<In<float>> vectors_;
  std::mutex mutex_;
};

int64_t add_matrix(BoundProgram& self, const std::vector<SegmentArgs>& parts) {
  require(!parts.empty(), "a matrix needs a segment");
  std::vector<PackedMatrix> segments;
  for (const auto& [format, rows, cols, scale, data] : parts) {
    require(reinterpret_cast<uintptr_t>(data.data()) % 64 == 0, "packed weights must be 64-byte aligned");
    segments.push_back({static_cast<WeightFormat>(format), rows, cols, scale, data.data()});
    require(cols == segments.front().cols, "stacked segments differ in cols");
    self.keep(data);
  }
  return self.open().add_matrix(std::move(segments));
}

int64_t add_vector(BoundProgram& self, const In<float>& values) {
  self.keep(values);
  return self.open().add_vector(values.data(), static_cast<int64_t>(values.shape(0)));
}

HeadsPart part_of(const PartArgs& args) {
  const auto& [x, head_dim, norm, eps, rope] = args;
  return {view_of(x), head_dim, norm, eps, rope};
}

void add_attention(BoundProgram& self, const std::vector<PartArgs>& parts, const std::vector<int64_t>& shape,
                   float scale, std::tuple<int64_t, int64_t, int64_t> outs) {
  require(parts.size() == 3 && shape.size() == 3, "attention takes q, k and v, and layer, heads and window");
  const auto [rotated, out, quantised] = outs;
  std::vector<HeadsPart> list;
  for (const PartArgs& part : parts) list.push_back(part_of(part));
  self.open().attention(list, shape, scale, rotated, out, quantised);
}

void add_gated_linear(BoundProgram& self, int64_t matrix, const ViewArgs& x, int64_t quantised, int64_t bias,
                      int32_t activation, std::tuple<int64_t, int64_t> outs) {
  Program& program = self.open();
  const SegmentedMatrix& m = program.matrix(matrix);
  require(m.rows == m.block_begin.back() * kBlockRows && m.rows % (2 * kGroup) == 0,
          "gate and up must be whole groups of columns");
  const auto [out, out_quantised] = outs;
  program.gated_linear(matrix, view_of(x), quantised, bias, static_cast<Activation>(activation), out, out_quantised);
}

using Rows = std::tuple<In<int32_t>, In<int32_t>, In<int32_t>>;
using Pages = std::tuple<In<int32_t>, In<int32_t>>;
using Ragged = std::tuple<In<int32_t>, In<float>, In<uint32_t>>;
using Results = std::tuple<Out<int32_t>, Out<float>, Out<int32_t, 2>, Out<float, 2>>;
using Picked = std::tuple<Out<float>, In<int32_t>, Out<uint8_t>>;

void run(BoundProgram& self, const Rows& rows, const Pages& tables, const In<uint8_t>& records, const Ragged& ragged,
         const Results& results, const Picked& picked) {
  const auto& [token_ids, positions, slice_offsets] = rows;
  const auto& [pages, page_offsets] = tables;
  const auto& [ints, floats, masks] = ragged;
  const auto& [out_ids, out_logprobs, top_ids, top_logprobs] = results;
  const auto& [picked_logprobs, picked_offsets, faults] = picked;
  const auto size = [](const auto& array) { return static_cast<int64_t>(array.shape(0)); };
  const int64_t num_heads = size(records) / static_cast<int64_t>(sizeof(HeadRecord));
  require(size(positions) == size(token_ids), "positions and token_ids differ in length");
  require(size(slice_offsets) >= 2, "a step needs at least one slice");
  require(size(page_offsets) == size(slice_offsets), "page_offsets and slice_offsets differ in length");
  for (int64_t s = 0; s + 1 < size(page_offsets); ++s) {
    const int32_t* o = page_offsets.data() + s;
    require(o[0] >= 0 && o[0] <= o[1] && o[1] <= size(pages), "page_offsets are out of range");
    const int32_t* r = slice_offsets.data() + s;
    require(r[0] >= 0 && r[0] < r[1] && r[1] <= size(token_ids), "slice_offsets are out of range");
  }
  require(size(records) % static_cast<int64_t>(sizeof(HeadRecord)) == 0, "records have the wrong size");
  require(size(out_ids) == num_heads && size(out_logprobs) == num_heads && size(faults) == num_heads &&
              size(top_ids) == num_heads && size(top_logprobs) == num_heads && size(picked_offsets) == num_heads + 1 &&
              top_ids.shape(1) == top_logprobs.shape(1),
          "the outputs have the wrong size");
  require(picked_offsets.data()[num_heads] <= size(picked_logprobs), "picked_logprobs is too short");
  // Records come as bytes of any alignment.
  std::vector<HeadRecord> heads(static_cast<size_t>(num_heads));
  if (num_heads > 0) std::memcpy(heads.data(), records.data(), heads.size() * sizeof(HeadRecord));
  const StepInputs in{
      size(token_ids),      token_ids.data(),
      positions.data(),     size(slice_offsets) - 1,
      slice_offsets.data(), pages.data(),
      page_offsets.data(),  num_heads,
      heads.data(),         {ints.data(), size(ints), floats.data(), size(floats), masks.data(), size(masks)}};
  const StepResults out{out_ids.data(),
                        out_logprobs.data(),
                        top_ids.data(),
                        top_logprobs.data(),
                        static_cast<int64_t>(top_ids.shape(1)),
                        picked_logprobs.data(),
                        picked_offsets.data(),
                        faults.data()};
  nb::gil_scoped_release release;
  const std::lock_guard lock(self.mutex());
  Program& program = self.open();
  check(program, in, out);
  program.run(in, out);
}

void profile(BoundProgram& self, bool is_on) {
  nb::gil_scoped_release release;
  const std::lock_guard lock(self.mutex());
  self.open().profile(is_on);
}

using PhaseTuple = std::tuple<std::string, int64_t, int64_t, int64_t, int64_t, int64_t>;

std::vector<PhaseTuple> profiled(BoundProgram& self) {
  const std::lock_guard lock(self.mutex());
  std::vector<PhaseTuple> found;
  for (const auto& [label, times] : self.open().profiled()) {
    found.emplace_back(label.name, times.count, times.worked_ns, times.waited_ns, label.weight_bytes, label.row_macs);
  }
  return found;
}

void copy_pages(BoundProgram& self, const std::vector<int64_t>& sources, const std::vector<int64_t>& targets) {
  require(sources.size() == targets.size(), "sources and targets differ in length");
  nb::gil_scoped_release release;
  const std::lock_guard lock(self.mutex());
  KvCache& kv = self.open().kv();
  for (size_t i = 0; i < sources.size(); ++i) {
    require(sources[i] >= 0 && sources[i] < kv.num_pages(), "a source page is out of range");
    require(targets[i] >= 0 && targets[i] < kv.num_pages(), "a target page is out of range");
  }
  for (size_t i = 0; i < sources.size(); ++i) {
    std::memmove(kv.page(targets[i]), kv.page(sources[i]), static_cast<size_t>(kv.page_bytes()));
  }
}

uint8_t* page_of(const KvCache& kv, int64_t page) {
  require(page >= 0 && page < kv.num_pages(), "a page is out of range");
  return kv.page(page);
}

nb::bytes read_page(BoundProgram& self, int64_t page) {
  const int64_t num_bytes = self.open().kv().page_bytes();
  PyObject* made = PyBytes_FromStringAndSize(nullptr, num_bytes);
  if (made == nullptr) throw std::bad_alloc();
  nb::bytes data = nb::steal<nb::bytes>(made);
  char* target = PyBytes_AsString(made);  // nobody else has it yet
  nb::gil_scoped_release release;
  const std::lock_guard lock(self.mutex());
  std::memcpy(target, page_of(self.open().kv(), page), static_cast<size_t>(num_bytes));
  return data;
}

void write_page(BoundProgram& self, int64_t page, const nb::bytes& data) {
  const char* source = data.c_str();
  const size_t num_bytes = data.size();
  nb::gil_scoped_release release;
  const std::lock_guard lock(self.mutex());
  const KvCache& kv = self.open().kv();
  require(num_bytes == static_cast<size_t>(kv.page_bytes()), "a page of another size");
  std::memcpy(page_of(kv, page), source, num_bytes);
}

}  // namespace

void bind_program(nb::module_& m) {
  nb::class_<Pool>(m, "ThreadPool").def(nb::init<int>(), nb::arg("num_threads")).def("close", [](Pool& self) {
    nb::gil_scoped_release release;
    self.threads->close();
  });

  nb::class_<BoundProgram>(m, "Program")
      .def(nb::init<const std::string&, const Pool&, std::tuple<int64_t, int64_t, int64_t>,
                    const std::tuple<int64_t, int64_t, int64_t, int64_t, std::string>&>(),
           nb::arg("isa"), nb::arg("pool"), nb::arg("limits"), nb::arg("kv"))
      .def("add_buffer", [](BoundProgram& self, int64_t width) { return self.open().add_buffer(width); })
      .def("add_quantised",
           [](BoundProgram& self, int64_t width, int num_terms) {
             require(width % kGroup == 0, "quantised rows have a multiple of 32 columns");
             require(num_terms == 1 || num_terms == 2, "quantised rows have 1 or 2 terms");
             return self.open().add_quantised(width, num_terms);
           })
      .def("add_matrix", &add_matrix)
      .def("add_vector", &add_vector)
      .def("add_rope",
           [](BoundProgram& self, std::vector<float> frequencies, int32_t style, float scale) {
             return self.open().add_rope(std::move(frequencies), static_cast<RopeStyle>(style), scale);
           })
      .def("embed",
           [](BoundProgram& self, int64_t table, float scale, int64_t out) { self.open().embed(table, scale, out); })
      .def("rms_norm",
           [](BoundProgram& self, const ViewArgs& x, int64_t weight, float eps, int64_t out, int64_t quantised,
              bool is_for_next) { self.open().rms_norm(view_of(x), weight, eps, out, quantised, is_for_next); })
      .def("quantise", [](BoundProgram& self, const ViewArgs& x,
                          int64_t quantised) { self.open().quantise(view_of(x), quantised); })
      .def("linear",
           [](BoundProgram& self, int64_t matrix, const ViewArgs& x, int64_t quantised, int64_t bias, int64_t out,
              bool accumulate) { self.open().linear(matrix, view_of(x), quantised, bias, out, accumulate); })
      .def("gated_linear", &add_gated_linear)
      .def("heads",
           [](BoundProgram& self, const PartArgs& part, int64_t out) { self.open().heads(part_of(part), out); })
      .def("attention", &add_attention)
      .def("gated",
           [](BoundProgram& self, const ViewArgs& gate, const ViewArgs& up, int32_t activation, int64_t out,
              int64_t quantised) {
             self.open().gated(view_of(gate), view_of(up), static_cast<Activation>(activation), out, quantised);
           })
      .def("add", [](BoundProgram& self, const ViewArgs& x, const ViewArgs& y,
                     int64_t out) { self.open().add(view_of(x), view_of(y), out); })
      .def("head",
           [](BoundProgram& self, const ViewArgs& x, int64_t norm, float eps, int64_t matrix, float scale,
              int num_terms) {
             require(num_terms == 1 || num_terms == 2, "quantised rows have 1 or 2 terms");
             self.open().head(view_of(x), norm, eps, matrix, scale, num_terms);
           })
      .def("finish", [](BoundProgram& self) { self.open().finish(); })
      .def("run", &run)
      .def("profile", &profile)
      .def("profiled", &profiled)
      .def("copy_pages", &copy_pages)
      .def("read_page", &read_page)
      .def("write_page", &write_page)
      .def("close", &BoundProgram::close)
      .def_prop_ro("vocab_size", [](const BoundProgram& self) { return self.open().vocab_size(); })
      .def_prop_ro("buffer_nbytes", [](const BoundProgram& self) { return self.open().buffer_nbytes(); });
}

}  // namespace roost
