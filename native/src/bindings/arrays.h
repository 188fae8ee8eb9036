// Checked views on numpy arrays. Each check names the argument and raises ValueError.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>
#include <memory>
#include <string>

namespace roost {

using ReadOnlyArray = nanobind::ndarray<nanobind::ro, nanobind::device::cpu>;
using WritableArray = nanobind::ndarray<nanobind::device::cpu>;

[[noreturn]] inline void refuse(const std::string& name, const std::string& what) {
  throw nanobind::value_error((name + " " + what).c_str());
}

template <class T, class Array>
void check_array(const Array& array, const char* name, size_t num_dims) {
  if (array.dtype() != nanobind::dtype<T>()) refuse(name, "has another dtype than is wanted");
  if (array.ndim() != num_dims) refuse(name, "must have " + std::to_string(num_dims) + " dimensions");
  int64_t stride = 1;
  for (size_t d = num_dims; d-- > 0; stride *= static_cast<int64_t>(array.shape(d))) {
    if (array.shape(d) > 1 && array.stride(d) != stride) refuse(name, "must be contiguous");
  }
}

template <class T>
const T* read_only(const ReadOnlyArray& array, const char* name, size_t num_dims) {
  check_array<T>(array, name, num_dims);
  return static_cast<const T*>(array.data());
}

template <class T>
T* writable(const WritableArray& array, const char* name, size_t num_dims) {
  check_array<T>(array, name, num_dims);
  return static_cast<T*>(array.data());
}

inline void check_length(size_t length, const char* name, int64_t wanted) {
  if (static_cast<int64_t>(length) != wanted) {
    refuse(name, "has " + std::to_string(length) + " values, not " + std::to_string(wanted));
  }
}

inline void check_aligned(const void* data, const char* name) {
  if (reinterpret_cast<uintptr_t>(data) % 64 != 0) refuse(name, "must be 64-byte aligned");
}

// A new numpy array of the given shape that owns `values`.
template <class T, size_t kDims>
nanobind::object owned_array(std::unique_ptr<T[]> values, const size_t (&shape)[kDims]) {
  T* data = values.get();
  nanobind::capsule owner(values.release(), [](void* p) noexcept { delete[] static_cast<T*>(p); });
  return nanobind::cast(nanobind::ndarray<nanobind::numpy, T>(data, kDims, shape, owner));
}

}  // namespace roost
