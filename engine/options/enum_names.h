#pragma once
// The names of enumerators in options and messages, one table for each enumeration.

#include <array>

#include "engine/options.h"
#include "engine/options/values.h"
#include "engine/plan/policy.h"
#include "sharding/world.h"

namespace aliquot {

inline constexpr std::array kDeviceWords{EnumName{"auto", DeviceChoice::kAuto}, EnumName{"host", DeviceChoice::kHost},
                                         EnumName{"cuda", DeviceChoice::kCuda}};
inline constexpr std::array kWorldWords{EnumName{"auto", WorldChoice::kAuto},
                                        EnumName{"threads", WorldChoice::kThreads}, EnumName{"mpi", WorldChoice::kMpi},
                                        EnumName{"nccl", WorldChoice::kNccl}};
inline constexpr std::array kStageWords{EnumName{"0", 0}, EnumName{"1", 1}, EnumName{"2", 2}, EnumName{"3", 3}};
constexpr EnumName<PipelineSchedule> word_of(PipelineSchedule schedule) { return {name(schedule), schedule}; }
inline constexpr std::array kPipelineScheduleWords{
    word_of(PipelineSchedule::kGpipe), word_of(PipelineSchedule::k1F1B), word_of(PipelineSchedule::kInterleaved),
    word_of(PipelineSchedule::kZeroBubble), word_of(PipelineSchedule::kAuto)};
inline constexpr std::array kAccumulateIntoWords{EnumName{"auto", AccumulateInto::kAuto},
                                                 EnumName{"full", AccumulateInto::kFull},
                                                 EnumName{"shard", AccumulateInto::kShard}};
inline constexpr std::array kGatherWords{EnumName{"auto", GatherMode::kAuto}, EnumName{"view", GatherMode::kView},
                                         EnumName{"copy", GatherMode::kCopy}};
inline constexpr std::array kGraphWords{EnumName{"auto", GraphMode::kAuto}, EnumName{"on", GraphMode::kOn},
                                        EnumName{"off", GraphMode::kOff}};
inline constexpr std::array kOffloadWords{EnumName{"none", Offload::kNone}, EnumName{"host", Offload::kHost},
                                          EnumName{"disk:DIR", Offload::kDisk}};
inline constexpr std::array kComputeWords{EnumName{"fp32", DType::kFloat32}, EnumName{"bf16", DType::kBFloat16},
                                          EnumName{"fp16", DType::kFloat16}};
inline constexpr std::array kGradientWords{EnumName{"fp32", DType::kFloat32}, EnumName{"bf16", DType::kBFloat16}};
inline constexpr std::array kMasterWords{EnumName{"split", MasterForm::kSplit}, EnumName{"fp32", MasterForm::kFp32}};

/// The value of the option "quantize".
struct Quantized {
  bool weights = false, gradients = false;
  friend bool operator==(const Quantized&, const Quantized&) = default;
};
inline constexpr std::array kQuantizeWords{EnumName{"none", Quantized{}}, EnumName{"weights", Quantized{true, false}},
                                           EnumName{"gradients", Quantized{false, true}},
                                           EnumName{"both", Quantized{true, true}}};

}  // namespace aliquot
