#include <algorithm>
#include <fmt/format.h>
#include <functional>

#include "apps/explain/findings.h"
#include "apps/ranks_text.h"

namespace aliquot {
namespace {

/// Returns the last collective in the lane and group of `missed` that the rank reached before `missed`. Returns null
/// if there is none.
const FlightEntry* last_before(const Evidence& evidence, const CollectiveRecord& missed, int rank) {
  const FlightEntry* last = nullptr;
  for (const CollectiveRecord& collective : evidence.collectives) {
    const auto found = collective.by_rank.find(rank);
    if (!in_same_order(collective, missed) || found == collective.by_rank.end()) continue;
    if (evidence.has_reached(*found->second) && collective.sequence < missed.sequence) last = found->second;
  }
  return last;
}

/// Describes the model code that the rank ran while the ranks of `wait` waited for this rank. Returns "" unless
/// ran_model_code_meanwhile() holds.
std::string model_code_text(const Evidence& evidence, const PendingCollective& wait, int rank) {
  if (!ran_model_code_meanwhile(evidence, wait, rank)) return {};
  const FlightModelCode& code = *evidence.longest_model_code(rank);
  return fmt::format("  rank {} {} {} (micro-batch {}{}) for {:.1f} s.\n", rank, code.ended < 0 ? "had been in" : "ran",
                     code.what, code.micro_batch, code.step < 0 ? "" : fmt::format(", step {}", code.step),
                     evidence.model_code_seconds(rank, code));
}

std::string missing_rank_text(const Evidence& evidence, const PendingCollective& wait, int rank) {
  const FlightRecord& record = evidence.of(rank);
  std::string text = fmt::format("  rank {} ", rank);
  if (const auto issued = wait.collective->by_rank.find(rank); issued != wait.collective->by_rank.end()) {
    return text +
           fmt::format("had issued it {:.1f} s before it wrote its record, but its lane had not reached it.\n",
                       record.written - issued->second->issued) +
           model_code_text(evidence, wait, rank);
  }
  const FlightEntry* last = last_before(evidence, *wait.collective, rank);
  text += last == nullptr ? "had not reached any collective before it"
                          : fmt::format("had last reached #{}, {}", last->sequence, operation_text(*last));
  if (last != nullptr && last->ended >= 0)
    text += fmt::format(", which it finished {:.1f} s before it wrote its record", record.written - last->ended);
  if (!record.place.empty()) text += fmt::format("; its training thread was at {}", record.place);
  return text + ".\n" + model_code_text(evidence, wait, rank);
}

std::string missing_records_text(const std::vector<int>& ranks) {
  if (ranks.empty()) return {};
  const bool one = ranks.size() == 1;
  return fmt::format("  {} left no record: {} killed, {} failed, or {} in another directory.\n", ranks_text(ranks),
                     one ? "it was" : "they were", one ? "its node" : "their nodes",
                     one ? "its file is" : "their files are");
}

std::string never_arrived_text(const Evidence& evidence, const PendingCollective& wait, const std::vector<int>& ranks) {
  const bool timed = evidence.is_timed(*wait.collective);
  std::string text =
      fmt::format("{} never reached {}, {} {} {}.\n", evidence.ranks_text(ranks), place_text(wait),
                  timed ? "where" : "which", evidence.ranks_text(wait.waiting), timed ? "waited" : "had issued");
  text.front() = 'R';
  std::vector<int> without_records;
  for (const int rank : ranks) {
    if (evidence.has(rank)) {
      text += missing_rank_text(evidence, wait, rank);
    } else {
      without_records.push_back(rank);
    }
  }
  return text + missing_records_text(without_records);
}

std::string late_arrival_text(const Evidence& evidence, const PendingCollective& wait) {
  std::string text = fmt::format("{} reached {} after {} had stopped waiting.\n", evidence.ranks_text(wait.late),
                                 place_text(wait), evidence.ranks_text(wait.waiting));
  text.front() = 'R';
  for (const int rank : wait.late) text += model_code_text(evidence, wait, rank);
  return text;
}

using IsLikely = std::function<bool(const PendingCollective& wait, int rank)>;

/// Tests for likely causes, in the order in which find_never_arrived() applies them. If the launcher ended all other
/// ranks, only a rank without a record is a likely cause.
std::vector<IsLikely> tiers_of_causes(const Evidence& evidence) {
  const auto has_no_record = [&evidence](const PendingCollective&, int rank) { return !evidence.has(rank); };
  if (evidence.ended_by_launcher) return {has_no_record};
  const auto failed = [&evidence](const PendingCollective&, int rank) { return evidence.failed_itself(rank); };
  const auto ran_model_code = [&evidence](const PendingCollective& wait, int rank) {
    return ran_model_code_meanwhile(evidence, wait, rank);
  };
  return {failed, has_no_record, ran_model_code};
}

MissingRanks find_never_arrived(const Evidence& evidence, const std::vector<PendingCollective>& waits,
                                const std::vector<IsLikely>& tests) {
  std::vector<std::vector<int>> roots_of_waits;
  roots_of_waits.reserve(waits.size());
  for (const PendingCollective& wait : waits) roots_of_waits.push_back(root_causes(evidence, waits, wait));
  for (const IsLikely& is_likely : tests) {
    for (size_t i = 0; i < waits.size(); ++i) {
      const PendingCollective& wait = waits[i];
      std::vector<int> roots = roots_of_waits[i];
      std::erase_if(roots, [&](int rank) { return !is_likely(wait, rank); });
      if (!roots.empty()) return {never_arrived_text(evidence, wait, roots), roots};
    }
  }
  return {};
}

/// Reports a rank that arrived late because it ran model code. A stopped process is in this state when it continues.
MissingRanks find_late_model_code(const Evidence& evidence, const std::vector<PendingCollective>& waits) {
  for (const PendingCollective& wait : waits) {
    std::vector<int> causes = wait.late;
    std::erase_if(causes, [&](int rank) { return !ran_model_code_meanwhile(evidence, wait, rank); });
    if (wait.missing.empty() && !causes.empty()) return {late_arrival_text(evidence, wait), causes};
  }
  return {};
}

/// Reports the first wait of at least kLongSeconds, but names no rank as the cause. A job that was stopped may have
/// hung, or it may only have been slow.
std::string long_waits_text(const Evidence& evidence, const std::vector<PendingCollective>& waits) {
  constexpr double kLongSeconds = 5;
  for (const PendingCollective& wait : waits) {
    const std::vector<int> roots = root_causes(evidence, waits, wait);
    if (roots.empty() || !evidence.is_timed(*wait.collective)) continue;
    double seconds = 0;
    for (const int rank : wait.waiting)
      seconds = std::max(seconds, waited_seconds(*wait.collective->by_rank.at(rank), evidence.of(rank)));
    if (seconds < kLongSeconds) continue;
    std::string text =
        fmt::format("{} had waited {:.1f} s in {}, which {} had not reached.\n", evidence.ranks_text(wait.waiting),
                    seconds, place_text(wait), evidence.ranks_text(roots));
    text.front() = 'R';
    return text;
  }
  return {};
}

}  // namespace

std::string place_text(const PendingCollective& wait) {
  const FlightEntry& entry = *wait.collective->by_rank.at(wait.waiting.front());
  const std::string place = collective_text(*wait.collective);
  if (entry.is_rendezvous) return place + label_text(entry.unit, entry.step);
  return place + ", " + operation_text(entry) + group_name_text(wait.collective->group_name);
}

MissingRanks find_missing_ranks(const Evidence& evidence) {
  const std::vector<PendingCollective> waits = find_pending_collectives(evidence);
  if (waits.empty()) return {};
  if (MissingRanks found = find_never_arrived(evidence, waits, tiers_of_causes(evidence)); !found.text.empty())
    return found;
  if (evidence.ended_by_launcher) return {long_waits_text(evidence, waits), {}};
  if (MissingRanks found = find_late_model_code(evidence, waits); !found.text.empty()) return found;
  // The test that accepts every rank comes last, because records do not show all waits.
  const auto any = [](const PendingCollective&, int) { return true; };
  if (MissingRanks found = find_never_arrived(evidence, waits, {any}); !found.text.empty()) return found;
  for (const PendingCollective& wait : waits) {
    if (wait.missing.empty()) return {late_arrival_text(evidence, wait), wait.late};
  }
  std::string text = "Deadlock: the ranks wait for one another.\n";
  for (const PendingCollective& wait : waits) {
    text += fmt::format("  {} in {}, waiting for {}.\n", evidence.ranks_text(wait.waiting), place_text(wait),
                        evidence.ranks_text(wait.missing));
  }
  return {text, {}};
}

}  // namespace aliquot
