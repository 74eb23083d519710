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

/// The ranks on this rank's GPU or, without GPUs, on this rank's node. Compares the UUIDs of GPUs. Their numbers do not
/// suffice, because a process that sees only one GPU gives it the number 0. Collective.
std::vector<int> MemoryAudit::ranks_of_memory() const {
  World& world = context_.world();
  const std::vector<std::string> gpus = world.communicator().gather_objects(gpu_uuid(world.device()));
  const std::vector<int>& nodes = world.topology().node_of_rank;
  const auto own = static_cast<size_t>(world.rank());
  std::vector<int> ranks;
  for (size_t r = 0; r < gpus.size(); ++r) {
    if (nodes[r] == nodes[own] && gpus[r] == gpus[own]) ranks.push_back(static_cast<int>(r));
  }
  return ranks;
}

/// The memory that a rank of the pipeline stage needs: on its GPU, or on the host if the run has no GPUs.
int64_t MemoryAudit::needed_bytes(const Plan& stage) const {
  if (context_.on_gpu()) return aliquot::rank_bytes(stage) + cache_bytes_;
  return std::max(planned(stage).planned_peak_bytes, aliquot::rank_bytes(stage));
}

void MemoryAudit::require_fit() const {
  World& world = context_.world();
  Device& device = world.device();
  const std::vector<int> ranks = ranks_of_memory();
  const std::vector<Plan>& stages = context_.engine().pipeline_plans();
  const int ranks_per_stage = world.rank_count() / static_cast<int>(stages.size());
  int64_t total = 0;
  for (const int r : ranks) total += needed_bytes(stages[static_cast<size_t>(r / ranks_per_stage)]);
  const GpuMemoryUse gpu = gpu_memory_use(device);
  const int64_t available = context_.on_gpu() ? gpu.total_bytes - gpu.used_bytes : available_memory_bytes();
  std::string problem;
  if (total > available) {
    problem = fmt::format(
        "not enough memory: a rank needs {}, and the total for {} on {} is {}, but only {} is available. Use "
        "a higher --zero-stage, a smaller --micro-batch or --sequence, or --recompute block; aliquot plan prints the "
        "memory of each choice.",
        format_bytes(needed_bytes(context_.engine().plan())),
        ranks.size() == 1 ? "one rank" : fmt::format("{} ranks", ranks.size()),
        context_.on_gpu() ? device.describe() : "this machine", format_bytes(total), format_bytes(available));
  }
  for (const std::string& any : world.communicator().gather_objects(problem)) {
    if (!any.empty()) throw UnavailableError(any);
  }
}

// Memory that is in use on a GPU but not in a ledger is divided equally among the ranks that share the GPU.
void MemoryAudit::measure_outside_on_gpu() {
  World& world = context_.world();
  const std::vector<int> ranks = ranks_of_memory();
  const auto held_by_rank = world.communicator().gather_objects(std::to_string(world.device().ledger().held_bytes()));
  int64_t held = 0;
  for (const int r : ranks) held += std::stoll(held_by_rank[static_cast<size_t>(r)]);
  const auto sharers = static_cast<int64_t>(ranks.size());
  gpu_ = gpu_memory_use(world.device());
  gpu_rank_ = ranks.front();
  system_bytes_ = gpu_.used_bytes / sharers;
  outside_bytes_ = (gpu_.used_bytes - held) / sharers;
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
  own.held_bytes = ledger.held_bytes();
  own.gpu = gpu_;
  own.gpu_rank = gpu_rank_;
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
