#include "engine/plan/plan_line.h"

#include <fmt/format.h>
#include <ostream>

#include "kernels/system/format_bytes.h"

namespace aliquot {

std::ostream& operator<<(std::ostream& to, const Plan& plan) {
  const Account account = aliquot::account(plan.schedule);
  std::string categories;
  for (std::size_t c = 0; c < account.peak.size(); ++c) {
    if (account.peak[c] == 0) continue;
    categories += fmt::format("{}{} {}", categories.empty() ? "" : ", ", name(static_cast<Category>(c)),
                              format_bytes(account.peak[c]));
  }
  const int ranks = plan.topology.rank_count();
  return to << fmt::format("ZeRO stage {} on {} {}, memory per rank: {}; peak {}, {}{}{}{}", plan.policy.zero_stage,
                           ranks, ranks == 1 ? "rank" : "ranks", categories, format_bytes(account.peak_bytes),
                           account.peaks_between_steps() ? "" : "at ", peak_moment(plan, account),
                           plan.choice.empty() ? "" : "; ", plan.choice);
}

}  // namespace aliquot
