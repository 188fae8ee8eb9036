#include "kv_cache.h"

namespace roost {

KvCache::KvCache(int64_t num_pages, int64_t num_layers, int64_t num_kv_heads, int64_t head_dim, KvType type)
    : num_pages_(num_pages),
      num_layers_(num_layers),
      num_kv_heads_(num_kv_heads),
      head_dim_(head_dim),
      type_(type),
      k_bytes_(k_head_bytes(head_dim, type)),
      v_bytes_(v_head_bytes(head_dim, type)),
      page_bytes_(num_layers * num_kv_heads * (k_bytes_ + v_bytes_)),
      memory_(static_cast<size_t>(num_pages * page_bytes_)) {}

}  // namespace roost
