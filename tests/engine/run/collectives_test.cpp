// Compares the number of collectives and the peak memory of plans with formulas.
#include <gtest/gtest.h>

#include "engine/plan/happens_before.h"
#include "engine/plan/schedule.h"
#include "tests/engine/plan/chain_model.h"

namespace aliquot {
namespace {

constexpr int kUnits = 5;
constexpr int64_t kElements = 4 * 3 * 2 * kBlockElements;  // per unit; shards of 1, 2, 3, 4 or 8 ranks are whole blocks

int count(const Plan& plan, Verb verb) {
  int found = 0;
  for (const Operation& operation : plan.schedule.operations) found += operation.verb == verb;
  return found;
}

int collectives(const Plan& plan) {
  int found = 0;
  for (const Operation& operation : plan.schedule.operations) found += is_collective(plan, operation);
  return found;
}

TEST(Collectives, CountMatchesTheFormulaAtEveryStage) {
  for (const int accumulate : {1, 2, 5}) {
    for (const auto into : {AccumulateInto::kFull, AccumulateInto::kShard}) {
      for (const int stage : {0, 1, 2, 3}) {
        const Policy policy = {.zero_stage = stage,
                               .micro_batch_count = accumulate,
                               .accumulate_into = into,
                               .prefetch = 0,
                               .gather = GatherMode::kCopy};
        const Plan p = plan(testing::chain(kUnits, kElements), policy, Topology::one_host(4));
        const int reduces = into == AccumulateInto::kFull ? kUnits : kUnits * accumulate;
        EXPECT_EQ(count(p, Verb::kReduce), reduces);
        EXPECT_EQ(count(p, Verb::kAllGatherGradients), stage == 0 ? kUnits : 0);
        EXPECT_EQ(count(p, Verb::kAllGatherParameters), stage == 1 || stage == 2 ? kUnits : 0);
        EXPECT_EQ(count(p, Verb::kNorm), 1);
        // Forward and backward each gather every unit, with two exceptions: the last unit stays gathered from forward
        // to backward, and the first unit stays gathered from one micro-batch to the next.
        const int gathers = stage == 3 ? accumulate * (2 * kUnits - 2) + 1 : 0;
        EXPECT_EQ(count(p, Verb::kGather), gathers) << "accumulate " << accumulate;
        EXPECT_EQ(collectives(p),
                  reduces + count(p, Verb::kAllGatherGradients) + count(p, Verb::kAllGatherParameters) + 1 + gathers);
      }
    }
  }
}

TEST(Collectives, KeepingUnitsGatheredSavesGathers) {
  for (int kept = 0; kept <= kUnits; ++kept) {
    const Plan p = plan(testing::chain(kUnits, kElements),
                        {.zero_stage = 3, .prefetch = 0, .keep_gathered = kept, .gather = GatherMode::kCopy},
                        Topology::one_host(2));
    EXPECT_EQ(count(p, Verb::kGather), 2 * kUnits - std::max(kept, 1));
  }
}

TEST(Collectives, ViewsNeedNoGatherCollectives) {
  const Plan p =
      plan(testing::chain(kUnits, kElements), {.zero_stage = 3, .gather = GatherMode::kView}, Topology::one_host(2));
  EXPECT_EQ(collectives(p), kUnits + 1) << "one reduce per unit, and the norm";
}

struct Row {
  const char* name;
  Precision precision;
};
const Row kRows[] = {{"Fp32", {}},
                     {"Bf16SplitMaster", {.compute = DType::kBFloat16}},
                     {"Bf16FullMaster", {.compute = DType::kBFloat16, .master = MasterForm::kFp32}},
                     {"Bf16Gradients", {.compute = DType::kBFloat16, .gradients = DType::kBFloat16}},
                     {"Bf16Sent", {.compute = DType::kBFloat16, .reduce = DType::kBFloat16}},
                     {"Fp16", {.compute = DType::kFloat16}}};

class PeakFormula : public ::testing::TestWithParam<Row> {};

/// Bytes per parameter: c for the working copy, g for the gradient, m for the master, 8 for the two moments.
TEST_P(PeakFormula, MatchesTheAccount) {
  const Precision& precision = GetParam().precision;
  const int64_t c = element_bytes(precision.compute), g = element_bytes(precision.gradients);
  const int64_t m = precision.compute == DType::kFloat32 ? 0 : precision.split() ? 2 : 4;
  const int64_t all = kUnits * kElements;
  for (const int ranks : {1, 2, 4, 8}) {
    for (const int stage : {0, 1, 2, 3}) {
      const Plan p =
          plan(testing::chain(kUnits, kElements),
               {.zero_stage = stage, .precision = precision, .gather = GatherMode::kCopy}, Topology::one_host(ranks));
      const BytesByCategory peak = account(p.schedule).peak;
      const auto of = [&](Category category) { return peak[static_cast<std::size_t>(category)]; };
      EXPECT_EQ(of(Category::kParameters), (stage == 3 ? all / ranks : all) * c);
      EXPECT_EQ(of(Category::kOptimizer), (stage == 0 ? all : all / ranks) * (8 + m));
      EXPECT_EQ(of(Category::kGradients), (stage >= 2 ? all / ranks : all) * g);
      // ZeRO stages 2 and 3 have one gradient slot for the current unit and one for the concurrent reduce. ZeRO stage 3
      // also has one slot for the full parameters of the current unit and one for those of the next unit.
      const int64_t gradient_slots = stage >= 2 ? 2 * kElements * g : 0;
      const int64_t unit_slots = stage == 3 ? 2 * kElements * c : 0;
      EXPECT_EQ(of(Category::kSlots), gradient_slots + unit_slots) << ranks << " ranks, ZeRO stage " << stage;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Precisions, PeakFormula, ::testing::ValuesIn(kRows),
                         [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace aliquot
