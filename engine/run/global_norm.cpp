#include "engine/run/global_norm.h"

#include <algorithm>
#include <cmath>
#include <span>

#include "engine/plan/sizes.h"
#include "kernels/elementwise/kernels.h"

namespace aliquot {
namespace {

int64_t block_count(int64_t elements) { return (elements + kBlockElements - 1) / kBlockElements; }

/// The blocks of one flat buffer in the shard of `rank`, with offsets from the start of the shard.
std::vector<NormSpan> spans_of(const Plan& plan, int32_t f, int32_t first_tensor, int rank) {
  std::vector<NormSpan> spans;
  for (const Piece& piece : plan.flats[f].layout.pieces(rank)) {
    spans.push_back({first_tensor + piece.tensor, piece.tensor_offset / kBlockElements, block_count(piece.count),
                     piece.shard_offset / kBlockElements});
  }
  return spans;
}

}  // namespace

GlobalNorm::GlobalNorm(const Plan& plan, const MeshGroups& groups, const StepMemory& memory, const HostView& view)
    : plan_(plan),
      groups_(groups),
      ranks_(groups.shard_group()),
      device_(groups.world().device()),
      part_bytes_(norm_part_bytes(plan)) {
  std::vector<NormTensor> tensors;
  for (int32_t f = 0; f < static_cast<int32_t>(plan.flats.size()); ++f) {
    const FlatSpec& flat = plan.flats[f];
    first_tensor_.push_back(static_cast<int32_t>(tensors.size()));
    if (!flat.trainable) continue;
    for (const TensorSpec& tensor : flat.layout.tensors())
      tensors.push_back({tensor.name, plan.is_here(f) ? block_count(tensor.element_count()) : 0});
  }
  tensor_sums_.resize(tensors.size());
  tree_ = std::make_unique<NormTree>(std::move(tensors));

  std::vector<NormNode> all;
  for (int r = 0; r < ranks_.rank_count(); ++r) {
    const auto nodes = nodes_of(r);
    value_counts_.push_back(static_cast<int64_t>(nodes.size()));
    all.insert(all.end(), nodes.begin(), nodes.end());
  }
  total_ = std::make_unique<GlobalNormSum>(*tree_, all);
  values_.resize(all.size());

  int64_t first_value = 1;
  for (int32_t f = 0; f < static_cast<int32_t>(plan.flats.size()); ++f) {
    if (!plan.trains(f)) continue;
    auto parts = std::make_unique<LocalNormSums>(*tree_, spans_of(plan, f, first_tensor_[f], ranks_.rank()));
    const auto count = static_cast<int64_t>(parts->nodes().size());
    own_.push_back({f, std::move(parts), first_value});
    first_value += count;
  }
  if (device_.kind() != DeviceKind::kHost) prepare_gpu(memory, view);
}

void GlobalNorm::prepare_gpu(const StepMemory& memory, const HostView& view) {
  parts_mirror_ = device_.allocate_host(part_bytes_ * ranks_.rank_count(), "parts of the norm");
  const SplitRuns runs = runs_on_gpu(memory);
  if (runs.runs.empty()) return;
  first_call_run_count_ = runs.first_call_count;
  second_call_run_count_ = std::ssize(runs.runs) - runs.first_call_count;
  view.store(memory.peek(Role::kNormRuns, -1), runs.runs.data(),
             static_cast<int64_t>(runs.runs.size() * sizeof(LeafRun)));
}

/// Returns the runs of blocks that this rank sums. Their places are relative to kNormParts, because buffers have fixed
/// addresses in the arena.
SplitRuns GlobalNorm::runs_on_gpu(const StepMemory& memory) const {
  const auto& buffers = plan_.schedule.buffers;
  const std::byte *parts = nullptr, *partial_sums = nullptr;
  std::vector<const std::byte*> squares(plan_.flats.size());
  for (BufferId b = 0; b < static_cast<BufferId>(buffers.size()); ++b) {
    if (buffers[b].role == Role::kNormParts) parts = memory.peek(b);
    if (buffers[b].role == Role::kNormPartialSums) partial_sums = memory.peek(b);
    if (buffers[b].role == Role::kBlockSquares) squares[buffers[b].flat] = memory.peek(b);
  }
  const auto place = [parts](const std::byte* at) { return (at - parts) / static_cast<int64_t>(sizeof(double)); };
  const int64_t own = place(parts + ranks_.rank() * part_bytes_);
  std::vector<LeafRun> runs;
  for (const FlatParts& flat : own_) {
    int64_t sum = own + flat.first_value;
    for (const LocalNormSums::Run& run : flat.parts->runs())
      runs.push_back({place(squares[flat.flat]) + run.place, run.block_count, sum++});
  }
  return split_runs(runs, partial_sums == nullptr ? 0 : place(partial_sums));
}

std::vector<NormNode> GlobalNorm::nodes_of(int rank) const {
  std::vector<NormNode> nodes;
  for (std::size_t f = 0; f < plan_.flats.size(); ++f) {
    if (!plan_.trains(static_cast<int32_t>(f))) continue;
    const auto own = tree_->nodes(spans_of(plan_, static_cast<int32_t>(f), first_tensor_[f], rank));
    nodes.insert(nodes.end(), own.begin(), own.end());
  }
  return nodes;
}

void GlobalNorm::enqueue_on_host(Stream& reduce, const StepMemory& memory, double* own, bool abandons) {
  for (FlatParts& flat : own_) {
    const std::byte* squares = memory.address(Role::kBlockSquares, flat.flat, AccessMode::kReads);
    flat.squares = reinterpret_cast<const double*>(squares);
  }
  reduce.run([this, own, abandons] {
    own[0] = abandons ? 1 : 0;
    for (const FlatParts& flat : own_)
      flat.parts->sums(flat.squares, {own + flat.first_value, flat.parts->nodes().size()});
  });
}

void GlobalNorm::enqueue_on_gpu(Stream& reduce, const StepMemory& memory, double* own, bool abandons) const {
  const Kernels& kernels = device_.kernels();
  kernels.fill(reduce, own, DType::kFloat64, abandons ? 1.0f : 0.0f, 1);
  for (const FlatParts& flat : own_) memory.declare_access(Role::kBlockSquares, flat.flat, AccessMode::kReads);
  memory.declare_access(Role::kNormPartialSums, -1, AccessMode::kWrites);
  const auto* runs = reinterpret_cast<const LeafRun*>(memory.address(Role::kNormRuns, -1, AccessMode::kReads));
  auto* parts = reinterpret_cast<double*>(memory.peek(Role::kNormParts, -1));
  kernels.sum_runs(reduce, {parts, runs, first_call_run_count_});
  kernels.sum_runs(reduce, {parts, runs + first_call_run_count_, second_call_run_count_});
}

void GlobalNorm::exchange(Stream& reduce, const StepMemory& memory, bool abandons, Label label) {
  const bool mirrors = parts_mirror_.data() != nullptr;
  std::byte* parts = memory.address(Role::kNormParts, -1, AccessMode::kWrites);
  auto* own = reinterpret_cast<double*>(parts + ranks_.rank() * part_bytes_);
  if (mirrors) {
    enqueue_on_gpu(reduce, memory, own, abandons);
  } else {
    enqueue_on_host(reduce, memory, own, abandons);
  }
  ranks_.all_gather_in_place(reduce, memory.range(Role::kNormParts, -1, AccessMode::kWrites), part_bytes_, label);
  if (mirrors) device_.kernels().copy(reduce, parts_mirror_.data(), parts, part_bytes_ * ranks_.rank_count());
  if (!flags_need_world()) return;
  Communicator& world = groups_.world().communicator();
  abandoned_by_ = abandons ? world.rank() : world.rank_count();
  world.all_reduce(reduce, {&abandoned_by_, 1}, Reduction::kMin, label);
}

void GlobalNorm::sum_tensors(const StepMemory& memory) {
  const std::byte* parts = parts_mirror_.data() != nullptr ? parts_mirror_.data() : memory.peek(Role::kNormParts, -1);
  int64_t next = 0;
  if (!flags_need_world()) abandoned_by_ = ranks_.rank_count();
  for (std::size_t r = 0; r < value_counts_.size(); ++r) {
    const auto* part = reinterpret_cast<const double*>(parts + static_cast<int64_t>(r) * part_bytes_);
    // If the shard group is not the world, an all-reduce over the world has combined the abandon flags.
    if (!flags_need_world() && part[0] != 0) abandoned_by_ = std::min(abandoned_by_, static_cast<double>(r));
    std::copy_n(part + 1, value_counts_[r], values_.begin() + next);
    next += value_counts_[r];
  }
  total_->finish(values_, tensor_sums_);
}

/// Replaces the sums of tensors by their sums over the group.
void GlobalNorm::add_over(GroupId group, Stream& reduce, Label label) {
  constexpr auto kMost = static_cast<std::size_t>(Communicator::kSmallCount);
  for (std::size_t first = 0; first < tensor_sums_.size(); first += kMost) {
    const std::size_t count = std::min(kMost, tensor_sums_.size() - first);
    groups_.at(group).all_reduce(reduce, {tensor_sums_.data() + first, count}, Reduction::kSum, label);
  }
}

/// Adds the sums of tensors over the tensor group, then over the pipeline stages. Only the first rank of a tensor group
/// adds its sum of a tensor that is not split. The sums of the other ranks should be equal, and all ranks get the same
/// bits even if they differ. The other ranks add 0, or their sum if it is not finite, because such a gradient may exist
/// on one rank only. Only one pipeline stage has a sum of a tensor, and the others add 0. So the sum over stages is
/// exact.
void GlobalNorm::exchange_tensors(Stream& reduce, Label label) {
  if (plan_.policy.tensor > 1) {
    for (std::size_t f = 0; f < plan_.flats.size() && groups_.coordinates().tensor > 0; ++f) {
      const FlatSpec& flat = plan_.flats[f];
      if (!flat.trainable || flat.gradients == TensorGradients::kSlice) continue;
      const std::span own(tensor_sums_.data() + first_tensor_[f], flat.parameters.size());
      std::ranges::replace_if(
          own, [](double sum) { return std::isfinite(sum); }, 0.0);
    }
    add_over(GroupId::kTensor, reduce, label);
  }
  if (plan_.stage.count > 1) add_over(GroupId::kPipeline, reduce, label);
}

NormResult GlobalNorm::finish() const {
  NormResult result;
  if (abandoned_by_ < groups_.world().rank_count()) result.abandoned_by = static_cast<int>(abandoned_by_);
  for (const int32_t tensor : tree_->name_order()) result.sum_of_squares += tensor_sums_[tensor];
  if (std::isfinite(result.sum_of_squares)) return result;
  for (const int32_t tensor : tree_->name_order()) {
    if (std::isfinite(tensor_sums_[tensor])) continue;
    result.first_not_finite = tree_->tensors()[tensor].name;
    break;
  }
  return result;
}

}  // namespace aliquot
