// The Python module: checks and calls, no arithmetic.
#include <nanobind/nanobind.h>

#include "bindings.h"

namespace nb = nanobind;

NB_MODULE(_native, m) {
  m.doc() = "roost's native kernels; use roost.kernels and roost.programs instead.";
  roost::bind_features(m);
}
