#include "kv_cache.h"

#include "kernels.h"

namespace roost {

KvCache::KvCache(int64_t num_pages, int64_t num_layers, int64_t num_kv_heads, int64_t head_dim, KvType type)
    : num_pages_(num_pages),
      num_layers_(num_layers),
      num_kv_heads_(num_kv_heads),
      head_dim_(head_dim),
      type_(type),
      head_bytes_(head_dim * kPageTokens * (type == KvType::kBf16 ? 2 : 4)),
      half_bytes_(num_kv_heads * head_bytes_),
      page_bytes_(num_layers * 2 * half_bytes_),
      memory_(static_cast<size_t>(num_pages * page_bytes_)) {}

}  // namespace roost
