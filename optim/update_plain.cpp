// The host's update for any processor.

#include "optim/update_host.h"

namespace aliquot {
namespace {

void stream_block(uint16_t* to, const uint16_t* from) { __builtin_memcpy(to, from, kBlockElements * sizeof *to); }
void stream_end() {}

}  // namespace
}  // namespace aliquot

#include "optim/code_blocks.h"
#include "optim/update_loop.h"

namespace aliquot {

const UpdateRuns& update_runs_plain() { return kRuns; }

}  // namespace aliquot
