#pragma once
// How a model is to be trained, as far as the schedule depends on it.

#include <cstdint>

#include "kernels/dtype.h"

namespace aliquot {

enum class GatherMode : uint8_t { kAuto, kView, kCopy };
enum class AccumulateInto : uint8_t { kAuto, kFull, kShard };

struct Policy {
  int zero_stage = 3;
  int micro_batch_count = 1;                               // gradients are accumulated over them
  AccumulateInto accumulate_into = AccumulateInto::kAuto;  // auto: full at stages 0 and 1, shard at 2 and 3
  int prefetch = 1;                                        // uses ahead of compute that units are gathered
  int keep_gathered = 0;                                   // last uses of forward whose units stay whole for backward
  GatherMode gather = GatherMode::kAuto;
  int64_t state_bytes_per_parameter = 8;  // of the optimizer, in fp32 moments
};

}  // namespace aliquot
