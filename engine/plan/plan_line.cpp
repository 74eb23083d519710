#include "engine/plan/plan_line.h"

#include <algorithm>
#include <fmt/format.h>
#include <optional>
#include <ostream>
#include <vector>

#include "kernels/system/error.h"
#include "kernels/system/format_bytes.h"

namespace aliquot {
namespace {

/// The plan of a lower ZeRO stage.
struct LowerStage {
  int zero_stage = 0;
  int64_t peak_bytes = 0;
};

/// Returns the lower ZeRO stage that needs the least memory. Omits those at which an option of the policy is invalid.
std::optional<LowerStage> smallest_lower_stage(const Plan& plan) {
  std::optional<LowerStage> smallest;
  for (int zero_stage = 0; zero_stage < plan.policy.zero_stage; ++zero_stage) {
    Policy policy = plan.policy;
    policy.zero_stage = zero_stage;
    try {
      const int64_t peak_bytes = account(aliquot::plan(plan.model, policy, plan.world).schedule).peak_bytes;
      if (!smallest || peak_bytes < smallest->peak_bytes) smallest = {zero_stage, peak_bytes};
    } catch (const UsageError&) {
    }
  }
  return smallest;
}

}  // namespace

std::string unit_hint(const Plan& plan) {
  const Policy& policy = plan.policy;
  if (policy.zero_stage < 2 || policy.pipeline > 1 || plan.topology.rank_count() == 1) return "";
  std::vector<int64_t> counts(plan.model.units.size());
  int64_t total = 0;
  for (const FlatSpec& flat : plan.flats) {
    counts[static_cast<std::size_t>(flat.unit)] += flat.layout.element_count();
    total += flat.layout.element_count();
  }
  const auto largest = std::ranges::max_element(counts);
  if (largest == counts.end() || 2 * *largest <= total) return "";
  const std::optional<LowerStage> lower = smallest_lower_stage(plan);
  const int64_t peak_bytes = account(plan.schedule).peak_bytes;
  if (!lower || peak_bytes <= lower->peak_bytes) return "";
  return fmt::format(
      "hint: ZeRO stage {} needs {} more than ZeRO stage {}, because unit {} has {:.0f} % of the parameters, and a "
      "rank "
      "holds all of them while it uses the unit: declare several smaller units",
      policy.zero_stage, format_bytes(peak_bytes - lower->peak_bytes), lower->zero_stage,
      plan.model.units[static_cast<std::size_t>(largest - counts.begin())].name,
      100.0 * static_cast<double>(*largest) / static_cast<double>(total));
}

std::ostream& operator<<(std::ostream& to, const Plan& plan) {
  const Account account = aliquot::account(plan.schedule);
  std::string categories;
  for (std::size_t c = 0; c < account.peak.size(); ++c) {
    if (account.peak[c] == 0) continue;
    categories += fmt::format("{}{} {}", categories.empty() ? "" : ", ", name(static_cast<Category>(c)),
                              format_bytes(account.peak[c]));
  }
  const int ranks = plan.topology.rank_count();
  const std::string hint = unit_hint(plan);
  return to << fmt::format("ZeRO stage {} on {} {}, memory per rank: {}; peak {}, {}{}{}{}{}{}", plan.policy.zero_stage,
                           ranks, ranks == 1 ? "rank" : "ranks", categories, format_bytes(account.peak_bytes),
                           account.peaks_between_steps() ? "" : "at ", peak_moment(plan, account),
                           plan.choice.empty() ? "" : "; ", plan.choice, hint.empty() ? "" : "; ", hint);
}

}  // namespace aliquot
