// One function a topic, each in its own file.
#pragma once

#include <nanobind/nanobind.h>

namespace roost {

void bind_features(nanobind::module_& m);  // instruction sets, usable cores
void bind_linear(nanobind::module_& m);    // packing and linear kernels

}  // namespace roost
