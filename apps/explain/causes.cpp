// Finds the ranks that made other ranks wait but did not wait themselves.
#include <algorithm>
#include <iterator>

#include "apps/explain/findings.h"

namespace aliquot {
namespace {

/// The longest time that a rank waited in the collective of `wait`; 0 if the records have no times.
double longest_wait_seconds(const Evidence& evidence, const PendingCollective& wait) {
  double seconds = 0;
  if (!evidence.is_timed(*wait.collective)) return seconds;
  for (const int rank : wait.waiting)
    seconds = std::max(seconds, evidence.blocked_seconds(rank, *wait.collective->by_rank.at(rank)));
  return seconds;
}

/// Whether the rank issued the collective of `wait` before that of `other`. The lane of a collective waits only for
/// work that was issued earlier. So the wait in `other` does not keep the lane from the collective of `wait`.
bool issued_before(const PendingCollective& wait, const PendingCollective& other, int rank) {
  if (wait.collective->is_rendezvous || other.collective->is_rendezvous) return false;
  const auto found = wait.collective->by_rank.find(rank);
  return found != wait.collective->by_rank.end() && found->second->number < other.collective->by_rank.at(rank)->number;
}

/// Whether `rank` is missing from `wait` because it waited in `other`.
bool explains(const Evidence& evidence, const PendingCollective& other, const PendingCollective& wait, int rank) {
  if (std::ranges::find(other.waiting, rank) == other.waiting.end()) return false;
  if (wait.collective->is_rendezvous && !other.collective->is_rendezvous) return false;
  if (issued_before(wait, other, rank)) return false;
  if (!ran_model_code_meanwhile(evidence, wait, rank)) return true;
  if (!evidence.is_timed(*other.collective) || !evidence.is_timed(*wait.collective)) return false;
  const double seconds = evidence.blocked_seconds(rank, *other.collective->by_rank.at(rank));
  return seconds >= longest_wait_seconds(evidence, wait) / 2;
}

}  // namespace

bool ran_model_code_meanwhile(const Evidence& evidence, const PendingCollective& wait, int rank) {
  const FlightModelCode* code = evidence.longest_model_code(rank);
  if (code == nullptr) return false;
  if (!evidence.is_timed(*wait.collective)) return evidence.of(rank).model_code.back().ended < 0;
  constexpr double kMinimumSeconds = 0.05;
  return evidence.model_code_seconds(rank, *code) >=
         std::max(kMinimumSeconds, longest_wait_seconds(evidence, wait) / 2);
}

std::vector<int> root_causes(const Evidence& evidence, const std::vector<PendingCollective>& waits,
                             const PendingCollective& wait) {
  const auto is_root = [&](int rank) {
    if (!evidence.has(rank)) return true;
    const auto waits_in = [&](const PendingCollective& other) { return explains(evidence, other, wait, rank); };
    return evidence.failed_itself(rank) || std::ranges::none_of(waits, waits_in);
  };
  std::vector<int> roots;
  std::ranges::copy_if(wait.missing, std::back_inserter(roots), is_root);
  return roots;
}

}  // namespace aliquot
