#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <stdexcept>
#include <string>
#include <vector>

#include "bindings.h"

namespace roost {

Isa isa_of(const std::string& name) {
  for (size_t i = 0; i < kIsaNames.size(); ++i) {
    const Isa isa = static_cast<Isa>(i);
    if (kIsaNames[i] == name && is_supported(isa)) return isa;
  }
  throw std::invalid_argument("this machine does not run the instruction set " + name);
}

void bind_features(nanobind::module_& m) {
  m.def(
      "available_isas",
      [] {
        std::vector<std::string> names;
        for (size_t i = 0; i < kIsaNames.size(); ++i) {
          if (is_supported(static_cast<Isa>(i))) names.emplace_back(kIsaNames[i]);
        }
        return names;
      },
      "Names of the compiled instruction sets that this machine runs, slowest first.");
}

}  // namespace roost
