// Which of the compiled instruction sets this processor (and kernel) can run.
#pragma once

#include <array>
#include <string_view>

namespace roost {

enum class Isa : int { kPortable = 0, kAvx2 = 1, kAvx512 = 2 };

constexpr std::array<std::string_view, 3> kIsaNames = {"portable", "avx2", "avx512"};

// True when every instruction that the variant was compiled for may be executed here.
bool is_supported(Isa isa);

}  // namespace roost
