#pragma once
// Mutations of the plans of pipeline stages, and what the validator must report about them.

#include <algorithm>
#include <fmt/format.h>
#include <functional>
#include <gtest/gtest.h>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "engine/proof/validate.h"
#include "kernels/system/error.h"
#include "tests/engine/plan/chain_model.h"
#include "tests/engine/plan/random_plan.h"

namespace aliquot::testing {

using Stages = std::vector<Plan>;

inline std::string sentences(const std::vector<Defect>& defects) {
  std::string lines;
  for (const Defect& defect : defects) lines += fmt::format("  {}: {}\n", name(defect.kind), defect.sentence);
  return lines;
}

inline bool reports(const std::vector<Defect>& defects, std::string_view sentence) {
  return std::ranges::any_of(defects, [&](const Defect& defect) {
    return defect.kind == DefectKind::kCut && defect.sentence.find(sentence) != std::string::npos;
  });
}

inline std::string use_name(const Plan& plan, int32_t use) {
  std::string units;
  for (const UnitId unit : plan.model.uses[use]) units += (units.empty() ? "" : "+") + plan.model.units[unit].name;
  return fmt::format("use {} ({})", use, units);
}

inline const std::string& unit_name(const Plan& plan, std::size_t unit) { return plan.model.units[unit].name; }

inline std::size_t unit_on(const Plan& plan) {
  return static_cast<std::size_t>(std::ranges::find(plan.unit_is_here, true) - plan.unit_is_here.begin());
}

/// A mutation of the plan of pipeline stage `s`. Returns the sentence that the validator must report, or a part of the
/// sentence. Returns nullopt if the mutation is not possible.
using Mutate = std::function<std::optional<std::string>(Stages& stages, std::size_t s)>;

/// Returns a mutation that applies `change` to the plan of any pipeline stage but the first. `what` is the expected
/// sentence, with {} in place of the index of the pipeline stage. `change` returns false if the change is not possible.
inline Mutate changed(const std::string& what, std::function<bool(Plan&)> change) {
  return [what, change = std::move(change)](Stages& stages, std::size_t s) -> std::optional<std::string> {
    if (s == 0 || !change(stages[s])) return std::nullopt;
    return fmt::format(fmt::runtime(what), s);
  };
}

inline const std::string differs = " differs between the plans of pipeline stages {} and 0";

inline std::string proof_error(const Stages& stages) {
  try {
    prove(stages);
  } catch (const FaultError& error) {
    return error.what();
  }
  return "";
}

/// Applies each mutation to each pipeline stage of random plans. The checks of the cut must report every mutation,
/// and no other check may report a defect. The validator must accept the original plans.
inline void expect_reports(const std::map<std::string, Mutate>& mutations, bool before_schedules) {
  std::map<std::string, int> reported;
  int tied = 0;
  for (uint64_t seed = 0; seed < 300 && !::testing::Test::HasFailure(); ++seed) {
    const RandomCase drawn = draw_pipeline(seed);
    const Stages original = plan_pipeline(drawn.model, drawn.policy, drawn.topology);
    ASSERT_EQ(sentences(validate_stages(original)), "") << describe(seed, drawn);
    tied += original.front().stage.tied_ends ? 1 : 0;
    for (const auto& [kind, mutate] : mutations) {
      for (std::size_t s = 0; s < original.size(); ++s) {
        Stages mutant = original;
        const std::optional<std::string> expected = mutate(mutant, s);
        if (!expected) continue;
        const auto defects = validate_stages(mutant);
        EXPECT_TRUE(reports(defects, *expected)) << kind << ": " << *expected << "\n"
                                                 << sentences(defects) << describe(seed, drawn);
        for (const Defect& defect : defects) EXPECT_EQ(defect.kind, DefectKind::kCut) << kind;
        if (before_schedules && !defects.empty()) {
          EXPECT_NE(proof_error(mutant).find(defects.front().sentence), std::string::npos) << kind;
        }
        ++reported[kind];
      }
    }
  }
  EXPECT_GT(tied, 20);
  for (const auto& [kind, mutate] : mutations) {
    fmt::print("{:<50} {:>8} reported\n", kind, reported[kind]);
    EXPECT_GT(reported[kind], 20) << kind;
  }
}

inline ModelSpec chain_with_activations(int uses) {
  ModelSpec model = chain(uses, 4096);
  model.activations.uses.assign(model.uses.size(), {1024, 4096, 512, true});
  model.activations.backward_bytes = 1024;
  return model;
}

}  // namespace aliquot::testing
