#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <vector>

#include "bindings.h"
#include "cpu_features.h"

namespace roost {

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
