#pragma once
// The words of enumerations, as options and messages spell them: one table each.

#include <array>

#include "engine/options/values.h"
#include "engine/plan/policy.h"
#include "sharding/world.h"

namespace aliquot {

inline constexpr std::array kDeviceWords{Word{"auto", DeviceChoice::kAuto}, Word{"host", DeviceChoice::kHost},
                                         Word{"cuda", DeviceChoice::kCuda}};
inline constexpr std::array kWorldWords{Word{"auto", WorldChoice::kAuto}, Word{"threads", WorldChoice::kThreads},
                                        Word{"mpi", WorldChoice::kMpi}, Word{"nccl", WorldChoice::kNccl}};
inline constexpr std::array kStageWords{Word{"0", 0}, Word{"1", 1}, Word{"2", 2}, Word{"3", 3}};
inline constexpr std::array kAccumulateIntoWords{
    Word{"auto", AccumulateInto::kAuto}, Word{"full", AccumulateInto::kFull}, Word{"shard", AccumulateInto::kShard}};
inline constexpr std::array kGatherWords{Word{"auto", GatherMode::kAuto}, Word{"view", GatherMode::kView},
                                         Word{"copy", GatherMode::kCopy}};
inline constexpr std::array kOffloadWords{Word{"none", Offload::kNone}, Word{"host", Offload::kHost},
                                          Word{"disk:DIR", Offload::kDisk}};
inline constexpr std::array kComputeWords{Word{"fp32", DType::kFloat32}, Word{"bf16", DType::kBFloat16},
                                          Word{"fp16", DType::kFloat16}};
inline constexpr std::array kGradientWords{Word{"fp32", DType::kFloat32}, Word{"bf16", DType::kBFloat16}};
inline constexpr std::array kMasterWords{Word{"split", MasterForm::kSplit}, Word{"fp32", MasterForm::kWhole}};

/// What crosses between nodes in 8 bits.
struct Quantized {
  bool weights = false, gradients = false;
  friend bool operator==(const Quantized&, const Quantized&) = default;
};
inline constexpr std::array kQuantizeWords{Word{"none", Quantized{}}, Word{"weights", Quantized{true, false}},
                                           Word{"gradients", Quantized{false, true}},
                                           Word{"both", Quantized{true, true}}};

}  // namespace aliquot
