#include <cstring>

#include "kernels/system/non_temporal_copy.h"

namespace aliquot {

void non_temporal_copy(std::byte* to, const std::byte* from, size_t count) {
  if (count > 0) std::memcpy(to, from, count);
}

}  // namespace aliquot
