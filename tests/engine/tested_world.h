#pragma once
// The world of tests that run in several worlds: each is compiled for hosts, for simulated GPUs that access one
// another's memory, and for simulated GPUs with NCCL. The definition ALIQUOT_TESTED_WORLD is 0, 1 or 2.

#include "tests/engine/small_model.h"

#ifndef ALIQUOT_TESTED_WORLD
#define ALIQUOT_TESTED_WORLD 0
#endif

namespace aliquot::testing_model {

inline constexpr bool kTestsHosts = ALIQUOT_TESTED_WORLD == 0, kTestsNccl = ALIQUOT_TESTED_WORLD == 2;

inline const WorldOptions kTestedWorld = {.device = kTestsHosts ? DeviceChoice::kHost : DeviceChoice::kCuda,
                                          .kind = kTestsNccl ? WorldChoice::kNccl : WorldChoice::kThreads,
                                          .timeout_seconds = 60};

/// The world of training without replays. With replays, NCCL adds in the order of hosts, and otherwise in its own one.
inline const WorldOptions kReferenceWorld = kTestsNccl ? kHosts : kTestedWorld;

/// Whether the tested world supports the options. GPUs cannot offload to disks.
inline bool is_supported(const EngineOptions& options) {
  return kTestsHosts || (options.offload_state != Offload::kDisk && options.offload_parameters != Offload::kDisk);
}

}  // namespace aliquot::testing_model
