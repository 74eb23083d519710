#pragma once
// How a block of the working copy leaves where no instruction writes past the caches. Before update_loop.h.

#include <cstdint>

#include "kernels/formats/dtype.h"
#include "kernels/formats/host_device.h"

#pragma GCC visibility push(default)
namespace aliquot {
namespace {

ALIQUOT_HOST_DEVICE void stream_block(uint16_t* to, const uint16_t* from) {
  __builtin_memcpy(to, from, kBlockElements * sizeof *to);
}
ALIQUOT_HOST_DEVICE void stream_end() {}

}  // namespace
}  // namespace aliquot
#pragma GCC visibility pop
