#include "engine/sharded_state.h"

#include <algorithm>
#include <fmt/format.h>
#include <functional>

#include "engine/plan/sizes.h"
#include "engine/plan/slices.h"
#include "engine/run/copy_comparison.h"
#include "engine/run/red_zones.h"
#include "kernels/system/booking.h"
#include "optim/update/moment_code.h"

namespace aliquot {
namespace {

/// The range of ranks whose shards of a flat buffer this rank stores. `at` returns the address of the value for element
/// `first` of the flat buffer.
struct HeldShards {
  int first_rank, last_rank;
  // The rank whose pieces this rank saves. -1: none, because a rank of another replica saves them.
  int own_rank;
  // Number of elements that share one value; more than 1 for scales of quantized blocks.
  int64_t elements_per_value = 1;
  std::function<std::byte*(int64_t first)> at;
};

/// Adds the pieces of `runs`, which have one value for every `each` elements.
void add_pieces(const SliceRuns& runs, int64_t each, bool copy, const std::function<std::byte*(int64_t local)>& at,
                std::vector<StatePiece>& pieces) {
  const int64_t run = runs.run == 0 ? runs.count : runs.run;
  const bool is_one_piece = run % each == 0 && runs.stride % each == 0 && runs.local_stride % each == 0;
  if (runs.run == 0 || is_one_piece) {
    pieces.push_back({.offset = runs.full / each,
                      .count = (runs.count + each - 1) / each,
                      .bytes = at(runs.local),
                      .copy = copy,
                      .run = runs.run / each,
                      .stride = runs.stride / each,
                      .memory_stride = runs.local_stride / each});
    return;
  }
  for (int64_t done = 0; done < runs.count / run; ++done)
    add_pieces({runs.full + done * runs.stride, runs.local + done * runs.local_stride, run}, each, copy, at, pieces);
}

/// Returns the held pieces of a tensor. Their offsets are those in the full tensor. If the slice is not the full
/// tensor, a piece of the shard consists of several pieces of the full tensor.
std::vector<StatePiece> pieces_of(const FlatLayout& layout, int32_t tensor, const Slice& slice,
                                  const HeldShards& held) {
  std::vector<StatePiece> pieces;
  for (int r = held.first_rank; r <= held.last_rank; ++r) {
    for (const Piece& piece : layout.pieces(r)) {
      if (piece.tensor != tensor) continue;
      const int64_t begin = r * layout.shard_count() + piece.shard_offset - piece.tensor_offset;
      const auto at = [&](int64_t local) { return held.at(begin + local); };
      for (const SliceRuns& runs : slice.runs(piece.tensor_offset, piece.tensor_offset + piece.count))
        add_pieces(runs, held.elements_per_value, r != held.own_rank, at, pieces);
    }
  }
  return pieces;
}

}  // namespace

/// Clears masters and optimizer state. Also clears padding, because difference() compares it and no other code writes
/// it.
void ShardedState::clear_masters_and_optimizer() const {
  for (int32_t f = 0; f < flat_count(); ++f) {
    for (const Role role : {Role::kMaster, Role::kOptimizer}) {
      std::byte* at = parts_.memory.address_between_steps(role, f);
      const OffloadStore* home = parts_.offload_stores.find_store_of(at);
      if (at != nullptr && !(home != nullptr && home->is_zero_initialized()))
        parts_.view.clear(at, needed_bytes(plan(), role, f));
    }
  }
}

void ShardedState::initialize(const Initialize& initialize) const {
  // The staging memory holds the values and their converted copies.
  const int64_t staging_bytes = plan().schedule.stream_bytes;
  const Booking booking(parts_.view.device().ledger(), staging_bytes, Category::kStaging, "initial values");
  const int64_t chunk = std::max<int64_t>(1, staging_bytes / kStreamCopies / static_cast<int64_t>(sizeof(float)));
  std::vector<float> values;
  clear_masters_and_optimizer();
  for (int32_t f = 0; f < flat_count(); ++f) {
    if (!plan().is_here(f)) continue;
    for (int r = parts_.weights.first_rank(); r <= parts_.weights.last_rank(); ++r)
      initialize_shard(initialize, f, r, chunk, values);
  }
  if (plan().policy.check)
    fill_red_zones_of_values(plan(), parts_.weights, parts_.view, parts_.groups.coordinates().tensor);
  clear_residuals();
}

/// Sets the initial values of the shard of `rank`. Processes at most `chunk` values at a time.
void ShardedState::initialize_shard(const Initialize& initialize, int32_t flat, int rank, int64_t chunk,
                                    std::vector<float>& values) const {
  const FlatSpec& spec = plan().flats[flat];
  const int64_t first = rank * spec.layout.shard_count();
  parts_.view.clear(parts_.weights.working_copy(flat, first),
                    spec.layout.shard_count() * element_bytes(plan().policy.precision.compute));
  for (const Piece& piece : slice_pieces(plan(), flat, rank, parts_.groups.coordinates().tensor)) {
    const ParameterSpec& parameter = spec_of(flat, piece.tensor);
    const int64_t begin = first + piece.shard_offset - piece.tensor_offset;
    const auto set_run = [&](int64_t full, int64_t local, int64_t count) {
      for (int64_t done = 0; done < count; done += chunk) {
        values.resize(static_cast<std::size_t>(std::min(chunk, count - done)));
        initialize(parameter, full + done, values);
        parts_.weights.write(flat, begin + local + done, std::ssize(values), values.data());
      }
    };
    for (const SliceRuns& runs :
         slice_of(flat, piece.tensor).runs(piece.tensor_offset, piece.tensor_offset + piece.count)) {
      const int64_t run = runs.run == 0 ? runs.count : runs.run;
      for (int64_t i = 0; i < runs.count / run; ++i)
        set_run(runs.full + i * runs.stride, runs.local + i * runs.local_stride, run);
    }
  }
}

void ShardedState::clear_residuals() const {
  for (int32_t f = 0; f < flat_count(); ++f) {
    if (std::byte* residual = parts_.memory.peek(Role::kErrorFeedbackResidual, f); residual != nullptr)
      parts_.view.clear(residual, needed_bytes(plan(), Role::kErrorFeedbackResidual, f));
  }
}

const ParameterSpec& ShardedState::spec_of(int32_t flat, int32_t tensor) const {
  const FlatSpec& spec = plan().flats[flat];
  return plan().model.units[spec.unit].parameters[spec.parameters[tensor]];
}

/// Returns the part of the tensor that this rank's tensor coordinate has.
Slice ShardedState::slice_of(int32_t flat, int32_t tensor) const {
  return aliquot::slice_of(plan(), flat, tensor, parts_.groups.coordinates().tensor);
}

/// Returns this rank's number in its shard group if it saves the flat buffer, otherwise -1. Ranks with other replica
/// coordinates have copies. So have ranks with other tensor coordinates, unless the flat buffer consists of slices.
int ShardedState::saving_rank(int32_t flat) const {
  const MeshCoordinates& at = parts_.groups.coordinates();
  const bool saves = at.tensor == 0 || plan().flats[flat].gradients == TensorGradients::kSlice;
  return at.replica == 0 && saves ? parts_.groups.shard_group().rank() : -1;
}

StateTensor ShardedState::parameter(int32_t flat, int32_t tensor) const {
  const FlatLayout& layout = plan().flats[flat].layout;
  const Weights& weights = parts_.weights;
  const auto weight = [&](int64_t first) { return weights.working_copy(flat, first); };
  return {.path = "parameters/" + layout.tensors()[tensor].name,
          .shape = spec_of(flat, tensor).tensor.shape,
          .dtype = DType::kFloat32,
          .pieces = plan().is_here(flat)
                        ? pieces_of(layout, tensor, slice_of(flat, tensor),
                                    {weights.first_rank(), weights.last_rank(), saving_rank(flat), 1, weight})
                        : std::vector<StatePiece>{},
          .access = weights.access(flat)};
}

StateTensor ShardedState::optimizer_state(int32_t flat, int32_t tensor, std::size_t state) const {
  const FlatLayout& layout = plan().flats[flat].layout;
  const TensorSpec& what = spec_of(flat, tensor).tensor;
  const StateSpec& kept = parts_.updater.states(flat)[state];
  const int rank = parts_.groups.shard_group().rank();
  const bool whole = plan().schedule.zero_stage == 0;
  const int first_rank = whole ? 0 : rank, last_rank = whole ? plan().topology.rank_count() - 1 : rank;
  std::byte* begin = plan().is_here(flat) ? parts_.updater.state(flat, state) : nullptr;
  const auto value = [&](int64_t first) {
    return begin + (first - first_rank * layout.shard_count()) / kept.elements_per_value * element_bytes(kept.dtype);
  };
  const int64_t values = (what.element_count() + kept.elements_per_value - 1) / kept.elements_per_value;
  return {.path = fmt::format("optimizer/{}/{}", what.name, kept.name),
          .shape = kept.elements_per_value > 1 ? std::vector<int64_t>{values} : what.shape,
          .dtype = kept.dtype,
          .pieces = begin != nullptr
                        ? pieces_of(layout, tensor, slice_of(flat, tensor),
                                    {first_rank, last_rank, saving_rank(flat), kept.elements_per_value, value})
                        : std::vector<StatePiece>{},
          .access = begin != nullptr ? raw_access(begin, kept.dtype) : nullptr,
          .code = moment_code(kept.name)};
}

std::vector<StateTensor> ShardedState::tensors() const {
  std::vector<StateTensor> tensors;
  for (int32_t f = 0; f < flat_count(); ++f) {
    for (int32_t t = 0; t < tensor_count(f); ++t) {
      tensors.push_back(parameter(f, t));
      if (!plan().flats[f].trainable) continue;
      for (std::size_t s = 0; s < parts_.updater.states(f).size(); ++s) tensors.push_back(optimizer_state(f, t, s));
    }
  }
  return tensors;
}

std::optional<StateTensor> ShardedState::parameter(std::string_view name) const {
  for (int32_t f = 0; f < flat_count(); ++f) {
    for (int32_t t = 0; t < tensor_count(f); ++t) {
      if (plan().flats[f].layout.tensors()[t].name == name) return parameter(f, t);
    }
  }
  return std::nullopt;
}

/// Returns the object that accesses this address, or null if the host can access the address directly.
const PieceAccess* ShardedState::raw_access(const std::byte* at, DType dtype) const {
  if (parts_.view.is_host_addressable(at)) return nullptr;
  const int64_t bytes = element_bytes(dtype);
  return bytes == 1 ? &access_1_ : bytes == 2 ? &access_2_ : &access_4_;
}

std::string ShardedState::difference() const {
  return CopyComparison(plan(), parts_.groups, parts_.memory, parts_.view).difference();
}

TensorStream ShardedState::stream() const {
  return {parts_.groups.world().communicator(), parts_.view.device().ledger(), plan().schedule.stream_bytes};
}

}  // namespace aliquot
