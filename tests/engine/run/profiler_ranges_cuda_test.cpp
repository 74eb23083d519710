// Tests that a profiler sees one range for each operation of a step. An NVTX injection, which is linked into this
// program, takes the place of the profiler.
#include <algorithm>
#include <gtest/gtest.h>
#include <nvtx3/nvToolsExt.h>
#include <string>
#include <vector>

#include "tests/engine/small_model.h"

namespace aliquot {
namespace {

using namespace testing_model;

thread_local std::vector<std::string> begun_ranges;
thread_local int open_ranges = 0, most_open_ranges = 0;

nvtxDomainHandle_t NVTX_API make_domain(const char* name) {
  return reinterpret_cast<nvtxDomainHandle_t>(new std::string(name));  // never freed, as with a profiler
}

nvtxStringHandle_t NVTX_API register_string(nvtxDomainHandle_t domain, const char* text) {
  return reinterpret_cast<nvtxStringHandle_t>(new std::string(*reinterpret_cast<std::string*>(domain) + ": " + text));
}

int NVTX_API begin_range(nvtxDomainHandle_t, const nvtxEventAttributes_t* range) {
  EXPECT_EQ(range->messageType, NVTX_MESSAGE_TYPE_REGISTERED);
  begun_ranges.push_back(*reinterpret_cast<const std::string*>(range->message.registered));
  most_open_ranges = std::max(most_open_ranges, ++open_ranges);
  return open_ranges - 1;
}

int NVTX_API end_range(nvtxDomainHandle_t) { return --open_ranges; }

template <class Function>
void set(NvtxFunctionTable table, NvtxCallbackIdCore2 id, Function* function) {
  *table[id] = reinterpret_cast<NvtxFunctionPointer>(function);
}

int NVTX_API inject(NvtxGetExportTableFunc_t export_table) {
  const auto* callbacks = static_cast<const NvtxExportTableCallbacks*>(export_table(NVTX_ETID_CALLBACKS));
  NvtxFunctionTable table = nullptr;
  unsigned size = 0;
  if (callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE2, &table, &size) == 0) return 0;
  set(table, NVTX_CBID_CORE2_DomainCreateA, &make_domain);
  set(table, NVTX_CBID_CORE2_DomainRegisterStringA, &register_string);
  set(table, NVTX_CBID_CORE2_DomainRangePushEx, &begin_range);
  set(table, NVTX_CBID_CORE2_DomainRangePop, &end_range);
  return 1;
}

/// NVTX reads this pointer in its first call, before it looks for the library of a profiler.
const bool is_injected = (InitializeInjectionNvtx2_fnptr = &inject) != nullptr;

/// Runs a step of one rank and expects its ranges in the order of the schedule.
void expect_range_for_each_operation(World& world) {
  EngineWithModel setup(world, Settings{.options = {.zero_stage = 3}});
  begun_ranges.clear();
  most_open_ranges = 0;
  train_micro_batch(setup.engine, setup.model, 0, 0, 0, 1.0f);
  EXPECT_FALSE(setup.engine.step().skipped);
  ASSERT_TRUE(is_injected);
  const Plan& plan = setup.engine.plan();
  std::vector<std::string> expected;
  for (OperationId id = 0; id < static_cast<OperationId>(plan.schedule.operations.size()); ++id)
    expected.push_back("aliquot: " + title(plan, id));
  EXPECT_EQ(begun_ranges, expected);
  EXPECT_EQ(open_ranges, 0);
  EXPECT_EQ(most_open_ranges, 1);
}

TEST(ProfilerRanges, ShowEachOperationOfAStep) {
  World::threads(1, expect_range_for_each_operation, {.device = DeviceChoice::kCuda, .timeout_seconds = 60});
}

}  // namespace
}  // namespace aliquot
