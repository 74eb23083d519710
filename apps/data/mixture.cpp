#include "apps/data/mixture.h"

#include <algorithm>
#include <fmt/format.h>
#include <numeric>
#include <optional>
#include <utility>

#include "kernels/system/error.h"

namespace aliquot {
namespace {

/// Rounds the weights to positive integers whose sum is Mixture::kPeriod. The largest remainders are rounded up.
std::vector<int64_t> quotas_of(std::span<const double> weights) {
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  std::vector<int64_t> quotas;
  std::vector<std::pair<double, size_t>> remainders;
  for (const double weight : weights) {
    // A weight such as 0.3 is not exact in binary: 299.99999999999994 means 300.
    const double exact = static_cast<double>(Mixture::kPeriod) * (weight / sum);
    const auto quota = static_cast<int64_t>(exact + 1e-6);
    if (quota < 1)
      throw UsageError(
          fmt::format("the weight {} is too small: expected at least a thousandth of the sum of the "
                      "weights, {}.",
                      weight, sum));
    remainders.emplace_back(static_cast<double>(quota) - exact, quotas.size());
    quotas.push_back(quota);
  }
  int64_t missing = Mixture::kPeriod - std::accumulate(quotas.begin(), quotas.end(), int64_t{0});
  std::ranges::sort(remainders);
  for (size_t i = 0; missing > 0; ++i, --missing) ++quotas[remainders[i].second];
  return quotas;
}

/// Assigns the positions of a period by Tijdeman's algorithm for the chairman assignment problem (1980). With n parts,
/// every count then differs from its share by at most 1 - 1 / (2n - 2).
std::vector<size_t> assign_period(const std::vector<int64_t>& quotas) {
  const auto scale = static_cast<int64_t>(2 * quotas.size() - 2);
  std::vector<int64_t> counts(quotas.size());
  std::vector<size_t> assigned;
  for (int64_t position = 1; position <= Mixture::kPeriod; ++position) {
    std::optional<size_t> chosen;
    std::pair<int64_t, int64_t> earliest;  // the deadline of the chosen part is first / second
    for (size_t part = 0; part < quotas.size(); ++part) {
      // scale x kPeriod times the difference between the share of the part and its count
      const int64_t due = scale * (quotas[part] * position - Mixture::kPeriod * counts[part]);
      if (due < Mixture::kPeriod) continue;
      const std::pair deadline{(scale - 1) * Mixture::kPeriod - due, quotas[part]};
      if (chosen && deadline.first * earliest.second >= earliest.first * deadline.second) continue;
      chosen = part;
      earliest = deadline;
    }
    ++counts[*chosen];
    assigned.push_back(*chosen);
  }
  return assigned;
}

}  // namespace

Mixture::Mixture(std::span<const double> weights) {
  if (weights.size() < 2) return;
  quotas_ = quotas_of(weights);
  std::vector<int64_t> counts(quotas_.size());
  for (const size_t part : assign_period(quotas_)) period_.push_back({part, counts[part]++});
}

Mixture::Place Mixture::at(int64_t position) const {
  if (period_.empty()) return {0, position};
  const Place& place = period_[static_cast<size_t>(position % kPeriod)];
  return {place.part, place.index + position / kPeriod * quotas_[place.part]};
}

}  // namespace aliquot
