// One function a topic, each in its own file.
#pragma once

#include <nanobind/nanobind.h>

#include <string>

#include "cpu_features.h"

namespace roost {

void bind_features(nanobind::module_& m);  // instruction sets
void bind_linear(nanobind::module_& m);    // packing and linear kernels
void bind_ops(nanobind::module_& m);       // the other kernels one by one, for tests
void bind_program(nanobind::module_& m);   // thread pool, programs

// Raises ValueError when there is no such instruction set, or this machine does not run it.
Isa isa_of(const std::string& name);

}  // namespace roost
