// Passes over all linear layers of SmolLM2-135M, beside what the machine can do at most.
//
//   linear_bench [--isa NAME] [--type GGML_TYPE] [--threads MAX] [--json all]
//
// `--json` is for programs: the passes on all threads alone, one JSON object a line.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "kernels.h"
#include "machine.h"
#include "pack.h"
#include "program.h"

namespace roost {
namespace {

struct Aligned {
  explicit Aligned(size_t nbytes)
      : data(static_cast<uint8_t*>(std::aligned_alloc(64, (nbytes + 63) / 64 * 64)), std::free) {}
  std::unique_ptr<uint8_t, void (*)(void*)> data;
};

struct Layer {
  int64_t rows;
  int64_t cols;
};
constexpr int kNumBlocks = 30;
constexpr Layer kLayers[] = {{960, 576}, {576, 576}, {3072, 576}, {576, 1536}};
constexpr int64_t kMaxRows = 512;
constexpr int64_t kMaxCols = 1536;
constexpr int64_t kMaxOutputs = 3072;

// Bytes whose every part is a sane number in every format: scales and floats are small and finite.
std::vector<uint8_t> source_bytes(int64_t nbytes) {
  std::mt19937 random(1);
  std::vector<uint8_t> bytes(static_cast<size_t>(nbytes));
  for (auto& byte : bytes) byte = static_cast<uint8_t>(random() & 0x3b);
  return bytes;
}

struct Model {
  std::vector<Aligned> memory;
  std::vector<PackedMatrix> matrices;
  int64_t nbytes = 0;
  double macs = 0;
};

Model make_model(GgmlType type) {
  const WeightFormat format = *format_of_ggml(static_cast<int32_t>(type));
  Model model;
  for (int block = 0; block < kNumBlocks; ++block) {
    for (const Layer& layer : kLayers) {
      if (layer.cols % source_block_cols(type) != 0) continue;
      const int64_t nbytes = packed_nbytes(format, layer.rows, layer.cols);
      Aligned& memory = model.memory.emplace_back(static_cast<size_t>(nbytes));
      const auto source = source_bytes(layer.rows * source_row_nbytes(type, layer.cols));
      const float scale = pack(type, source.data(), layer.rows, layer.cols, memory.data.get());
      model.matrices.push_back({format, layer.rows, layer.cols, scale, memory.data.get()});
      model.nbytes += nbytes;
      model.macs += static_cast<double>(layer.rows * layer.cols);
    }
  }
  return model;
}

struct Activations {
  std::vector<float> x = std::vector<float>(kMaxRows * kMaxCols);
  std::vector<QuantGroup> groups = std::vector<QuantGroup>(kMaxRows * kMaxCols / kGroup);
  std::vector<float> y = std::vector<float>(kMaxRows * kMaxOutputs);
};

// One pass: every matrix, one after the other, shared by the threads in pieces.
void pass(const LinearKernels& kernels, const Model& model, Activations& a, ThreadPool& pool, int64_t num_rows) {
  std::vector<Claims> claims(model.matrices.size());
  const int64_t num_pieces = pool.num_threads() == 1 ? 1 : 8 * pool.num_threads();
  run_on(pool, [&](int thread) {
    for (size_t i = 0; i < model.matrices.size(); ++i) {
      const PackedMatrix& w = model.matrices[i];
      const int64_t num_blocks = (w.rows + kBlockRows - 1) / kBlockRows;
      int64_t num_mine = 0;
      for (int64_t piece; (piece = claims[i].take(1)) < num_pieces; ++num_mine) {
        const int64_t begin = num_blocks * piece / num_pieces;
        const int64_t end = num_blocks * (piece + 1) / num_pieces;
        if (is_quantised(w.format)) {
          kernels.linear_quant(w, {a.groups.data(), w.cols, 1}, num_rows, a.y.data(), kMaxOutputs, begin, end,
                               {nullptr, false});
        } else {
          kernels.linear_float(w, a.x.data(), kMaxCols, num_rows, a.y.data(), kMaxOutputs, begin, end,
                               {nullptr, false});
        }
      }
      if (!pool.finish(thread, claims[i], num_mine, num_pieces)) return;
    }
  });
}

void print_table(Isa isa, GgmlType type, int max_threads, bool is_json) {
  const LinearKernels& kernels = *kernels_of(isa).linear;
  const Model model = make_model(type);
  Activations a;
  std::mt19937 random(2);
  std::normal_distribution<float> normal;
  for (float& value : a.x) value = normal(random);
  for (int64_t t = 0; t < kMaxRows; ++t) {
    kernels.quantize_row(&a.x[static_cast<size_t>(t * kMaxCols)], kMaxCols, 1,
                         &a.groups[static_cast<size_t>(t * kMaxCols / kGroup)]);
  }
  if (!is_json) {
    std::printf("isa %s, GGML type %d: %.1f MB packed, %.1f M multiply-adds a row\n",
                std::string(kIsaNames[static_cast<size_t>(isa)]).c_str(), static_cast<int>(type),
                static_cast<double>(model.nbytes) / 1e6, model.macs / 1e6);
  }
  for (int threads = is_json ? max_threads : 1; threads <= max_threads; ++threads) {
    ThreadPool pool(threads);
    if (!is_json) {
      std::printf("%d thread(s): memory %.1f GB/s, byte multiply-adds at most %.0f G/s\n", threads,
                  read_gb_s(pool, size_t{256} << 20, 1, 6), peaks(pool, isa).int8_gmac_s);
    }
    for (const int64_t num_rows : {1, 2, 4, 8, 16, 64, 512}) {
      const int num_runs = num_rows < 16 ? 40 : num_rows < 100 ? 10 : 4;
      const double seconds = best_s(num_runs, [&] { pass(kernels, model, a, pool, num_rows); });
      if (is_json) {
        std::printf("{\"rows\": %d, \"nbytes\": %.0f, \"macs\": %.0f, \"seconds\": %.9f}\n", static_cast<int>(num_rows),
                    static_cast<double>(model.nbytes), model.macs * static_cast<double>(num_rows), seconds);
        continue;
      }
      std::printf("  rows %3d: %8.1f passes/s %9.1f rows/s %7.1f GB/s %8.1f GMAC/s\n", static_cast<int>(num_rows),
                  1 / seconds, static_cast<double>(num_rows) / seconds,
                  static_cast<double>(model.nbytes) / seconds / 1e9,
                  model.macs * static_cast<double>(num_rows) / seconds / 1e9);
    }
  }
}

int main(int argc, char** argv) {
  std::string isa(kIsaNames[static_cast<size_t>(best_isa())]);
  int type = static_cast<int>(GgmlType::kQ4_1);
  int threads = 2;
  bool is_json = false;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string name = argv[i];
    if (name == "--isa") isa = argv[i + 1];
    if (name == "--type") type = std::atoi(argv[i + 1]);
    if (name == "--threads") threads = std::atoi(argv[i + 1]);
    if (name == "--json") is_json = true;
  }
  const auto* found = std::ranges::find(kIsaNames, isa);
  if (found == kIsaNames.end() || !is_supported(static_cast<Isa>(found - kIsaNames.begin())) || !format_of_ggml(type)) {
    std::fprintf(stderr, "this machine does not run isa %s, or GGML type %d is not one that is packed\n", isa.c_str(),
                 type);
    return 2;
  }
  print_table(static_cast<Isa>(found - kIsaNames.begin()), static_cast<GgmlType>(type), threads, is_json);
  return 0;
}

}  // namespace
}  // namespace roost

int main(int argc, char** argv) { return roost::main(argc, argv); }
