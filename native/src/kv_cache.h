// The memory of the paged KV cache. A page holds 16 tokens of every layer:
//   [page][layer][K, V][kv_head][head page], the head page as in op_kernels.h
// so that a page is one contiguous piece that can be copied or spilled as a whole.
#pragma once

#include <cstddef>
#include <cstdint>

#include "lazy_memory.h"
#include "op_kernels.h"

namespace roost {

class KvCache {
 public:
  // Reserves address space; memory is taken as pages are first written. Throws std::bad_alloc.
  KvCache(int64_t num_pages, int64_t num_layers, int64_t num_kv_heads, int64_t head_dim, KvType type);

  int64_t num_pages() const { return num_pages_; }
  int64_t num_layers() const { return num_layers_; }
  int64_t num_kv_heads() const { return num_kv_heads_; }
  int64_t head_dim() const { return head_dim_; }
  KvType type() const { return type_; }
  int64_t page_bytes() const { return page_bytes_; }
  int64_t nbytes() const { return num_pages_ * page_bytes_; }

  uint8_t* page(int64_t page) const { return memory_.data() + page * page_bytes_; }
  // Offsets within a page of a layer's K and V of one head.
  int64_t k_offset(int64_t layer, int64_t head) const {
    return layer * num_kv_heads_ * (k_bytes_ + v_bytes_) + head * k_bytes_;
  }
  int64_t v_offset(int64_t layer, int64_t head) const { return k_offset(layer, num_kv_heads_) + head * v_bytes_; }

 private:
  int64_t num_pages_, num_layers_, num_kv_heads_, head_dim_;
  KvType type_;
  int64_t k_bytes_, v_bytes_, page_bytes_;
  LazyMemory memory_;
};

}  // namespace roost
