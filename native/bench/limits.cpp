// What this machine can do at most, as one JSON object: memory, caches, multiply-adds.
//
//   limits_bench [--threads N]
//
// Each figure is the best of several runs, alone on one thread and on all of them at once. Memory is
// read with plain loads, from buffers far larger than the last cache (dram) or within it (l3).
// Multiply-adds are counted as if nothing but their instruction had to be done: registers only, and
// enough of them that no result is waited for.
#include <cstdio>
#include <string>

#include "machine.h"

namespace roost {
namespace {

void print_limits(int threads, bool is_last) {
  ThreadPool pool(threads);
  const double dram = read_gb_s(pool, size_t{256} << 20, 1, 6);
  const double l3 = read_gb_s(pool, size_t{4} << 20, 8, 30);
  const Peaks peak = peaks(pool, best_isa());
  std::printf(
      "  {\"threads\": %d, \"dram_gb_s\": %.2f, \"l3_gb_s\": %.2f, \"int8_gmac_s\": %.1f, \"f32_gmac_s\": %.1f}%s\n",
      threads, dram, l3, peak.int8_gmac_s, peak.f32_gmac_s, is_last ? "" : ",");
}

int main(int argc, char** argv) {
  int threads = 2;
  for (int i = 1; i + 1 < argc; i += 2) {
    if (std::strcmp(argv[i], "--threads") == 0) threads = std::max(1, std::atoi(argv[i + 1]));
  }
  const std::string isa(kIsaNames[static_cast<size_t>(best_isa())]);
  std::printf("{\"isa\": \"%s\", \"limits\": [\n", isa.c_str());
  if (threads > 1) print_limits(1, false);
  print_limits(threads, true);
  std::printf("]}\n");
  return 0;
}

}  // namespace
}  // namespace roost

int main(int argc, char** argv) { return roost::main(argc, argv); }
