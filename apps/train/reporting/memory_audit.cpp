#include "apps/train/reporting/memory_audit.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <fmt/format.h>
#include <string>

#include "checkpoint/save.h"
#include "engine/choose/budget.h"
#include "kernels/system/error.h"
#include "kernels/system/machine_memory.h"

namespace aliquot {
namespace {

constexpr size_t kMemoryFigures = kCategoryCount + 2;

}  // namespace

RankMemory MemoryAudit::planned(const Plan& stage) const {
  const std::optional<int64_t> snapshot = snapshot_bytes(stage);
  const Account planned = account(stage.schedule);
  const int64_t background = snapshot ? kStagingBytes + *snapshot : 0;
  RankMemory memory;
  memory.planned = planned.peak;
  memory.planned[static_cast<size_t>(Category::kStaging)] += background;
  memory.planned[static_cast<size_t>(Category::kActivations)] += cache_bytes_;
  memory.planned_peak_bytes = background + cache_bytes_ + planned.peak_bytes;
  return memory;
}

/// The planned memory of all ranks on this rank's node.
int64_t MemoryAudit::node_bytes() const {
  const World& world = context_.world();
  const auto& nodes = world.topology().node_of_rank;
  const std::vector<Plan>& stages = context_.engine().pipeline_plans();
  const int ranks_per_stage = world.rank_count() / static_cast<int>(stages.size());
  int64_t bytes = 0;
  for (int r = 0; r < world.rank_count(); ++r) {
    const Plan& stage = stages[static_cast<size_t>(r / ranks_per_stage)];
    if (nodes[r] == nodes[world.rank()])
      bytes += std::max(planned(stage).planned_peak_bytes, aliquot::rank_bytes(stage));
  }
  return bytes;
}

void MemoryAudit::require_fit() const {
  const int64_t rank_bytes = std::max(planned().planned_peak_bytes, aliquot::rank_bytes(context_.engine().plan()));
  const int64_t available = available_memory_bytes();
  const int64_t ranks_here = context_.node_rank_count();
  std::string problem;
  if (const int64_t total = node_bytes(); !context_.on_gpu() && total > available) {
    problem = fmt::format(
        "not enough memory: a rank needs {}, and the total for {} on this machine is {}, but only {} is available. Use "
        "a higher --zero-stage, a smaller --micro-batch or --sequence, or --recompute block; aliquot plan prints the "
        "memory of each choice.",
        format_bytes(rank_bytes), ranks_here == 1 ? "one rank" : fmt::format("{} ranks", ranks_here),
        format_bytes(total), format_bytes(available));
  }
  for (const std::string& any : context_.world().communicator().gather_objects(problem)) {
    if (!any.empty()) throw UnavailableError(any);
  }
}

// Memory that is in use on a GPU but not in a ledger is divided equally among the ranks that share the GPU.
void MemoryAudit::measure_outside_on_gpu() {
  World& world = context_.world();
  const Topology& topology = world.topology();
  const int own = world.rank();
  int64_t held = 0, sharers = 0;
  const auto held_by_rank = world.communicator().gather_objects(std::to_string(world.device().ledger().held_bytes()));
  for (int r = 0; r < world.rank_count(); ++r) {
    if (topology.node_of_rank[r] != topology.node_of_rank[own] || topology.gpu_of_rank[r] != topology.gpu_of_rank[own])
      continue;
    held += std::stoll(held_by_rank[static_cast<size_t>(r)]);
    ++sharers;
  }
  const int64_t used_bytes = used_gpu_bytes(world.device());
  system_bytes_ = used_bytes / sharers;
  outside_bytes_ = (used_bytes - held) / sharers;
}

// Memory of a process that is not in a ledger is divided equally among the ranks that are threads of the process.
void MemoryAudit::measure_outside() {
  if (context_.on_gpu()) return measure_outside_on_gpu();
  double held = static_cast<double>(context_.world().device().ledger().held_bytes());
  const bool own_process = launched_process_count() > 1;
  if (!own_process) context_.all_reduce({&held, 1}, Reduction::kSum, {"memory", context_.engine().step_count()});
  const int64_t sharers = context_.process_rank_count();
  const int64_t share_bytes = process_pss_bytes();
  system_bytes_ = share_bytes / sharers;
  outside_bytes_ = (share_bytes - static_cast<int64_t>(held)) / sharers;
}

void MemoryAudit::measure_outside_once() {
  if (!measured_outside_) measure_outside();
  measured_outside_ = true;
}

MemoryRecord MemoryAudit::most() const {
  const Ledger& ledger = context_.world().device().ledger();
  std::array<double, kMemoryFigures> figures{};
  const BytesByCategory peak = ledger.peak();
  for (size_t i = 0; i < peak.size(); ++i) figures[i] = static_cast<double>(peak[i]);
  figures[kCategoryCount] = static_cast<double>(ledger.in_use_peak_bytes());
  figures[kCategoryCount + 1] = static_cast<double>(outside_bytes_);
  context_.all_reduce(figures, Reduction::kMax, {"memory", context_.engine().step_count()});
  MemoryRecord most;
  for (size_t i = 0; i < peak.size(); ++i) most.by_category[i] = static_cast<int64_t>(figures[i]);
  most.peak_bytes = static_cast<int64_t>(figures[kCategoryCount]);
  most.outside_bytes = static_cast<int64_t>(figures[kCategoryCount + 1]);
  return most;
}

std::vector<RankMemory> MemoryAudit::by_rank() {
  const int64_t sharers = context_.process_rank_count();
  RankMemory own = planned();
  const Ledger& ledger = context_.world().device().ledger();
  own.measured = ledger.peak();
  own.measured_peak_bytes = ledger.in_use_peak_bytes();
  own.outside_bytes = outside_bytes_;
  own.system_bytes = system_bytes_;
  own.system_peak_bytes = system_peak_.bytes() / sharers;
  own.system_start_bytes = system_peak_.start_bytes() / sharers;
  own.system_peak_phase = system_peak_.phase();
  for (size_t i = 0; i < kRunPhaseCount; ++i) own.system_bytes_by_phase[i] = system_peak_.bytes_by_phase()[i] / sharers;
  std::vector<RankMemory> ranks;
  const std::string bytes(reinterpret_cast<const char*>(&own), sizeof(own));
  for (const std::string& from : context_.world().communicator().gather_objects(bytes)) {
    std::memcpy(&ranks.emplace_back(), from.data(), sizeof(RankMemory));
  }
  return ranks;
}

}  // namespace aliquot
