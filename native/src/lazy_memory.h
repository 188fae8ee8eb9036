// Zeroed memory straight from the system: costs nothing until touched, and is given back as a whole.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <new>
#include <utility>

namespace roost {

class LazyMemory {
 public:
  LazyMemory() = default;
  // Page-aligned. Throws std::bad_alloc.
  explicit LazyMemory(size_t nbytes) : nbytes_(nbytes) {
    if (nbytes == 0) return;
    void* data = mmap(nullptr, nbytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (data == MAP_FAILED) throw std::bad_alloc();
    data_ = static_cast<uint8_t*>(data);
#if defined(MADV_HUGEPAGE)
    madvise(data, nbytes, MADV_HUGEPAGE);  // a wish: where it is refused, small pages do
#endif
  }
  LazyMemory(LazyMemory&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), nbytes_(std::exchange(other.nbytes_, 0)) {}
  LazyMemory& operator=(LazyMemory&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(nbytes_, other.nbytes_);
    return *this;
  }
  ~LazyMemory() {
    if (data_ != nullptr) munmap(data_, nbytes_);
  }

  uint8_t* data() const { return data_; }
  float* floats() const { return reinterpret_cast<float*>(data_); }
  size_t nbytes() const { return nbytes_; }

 private:
  uint8_t* data_ = nullptr;
  size_t nbytes_ = 0;
};

}  // namespace roost
