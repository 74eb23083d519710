#include <cstring>

#include "kernels/system/stream_copy.h"

namespace aliquot {

void stream_copy(std::byte* to, const std::byte* from, size_t count) {
  if (count > 0) std::memcpy(to, from, count);
}

}  // namespace aliquot
