// The Python module: checks and calls, no arithmetic.
#include <nanobind/nanobind.h>

#include "bindings.h"
#include "kernels.h"

NB_MODULE(_native, m) {
  m.doc() = "roost's native kernels; use roost.kernels and roost.programs instead.";
  m.attr("NUMERICS") = roost::kNumerics;
  roost::bind_features(m);
  roost::bind_linear(m);
  roost::bind_ops(m);
  roost::bind_program(m);
}
