#pragma once
// The model's state between steps, as this rank holds it.

#include <optional>
#include <string_view>
#include <vector>

#include "engine/options.h"
#include "engine/run/memory/weights.h"
#include "engine/run/replica_groups.h"
#include "engine/run/tensor_stream.h"
#include "engine/run/updater.h"
#include "sharding/state.h"

namespace aliquot {

/// Parameters, masters and the optimizer's state: initial values, tensors as checkpoints take them, and comparisons. Used
/// between steps, with nothing under way, from the rank's own thread. Everything given must outlive it.
class ShardedState {
 public:
  struct Parts {
    const Plan& plan;
    const ReplicaGroups& groups;
    const OffloadStores& offload_stores;
    const HostView& view;
    const StepMemory& memory;
    const Weights& weights;
    const Updater& updater;
  };
  explicit ShardedState(const Parts& parts) : parts_(parts) {}

  /// Parameters from `initialize`; all else is zeros.
  void initialize(const Initialize& initialize) const;
  /// Clears the error-feedback residuals of quantised gradients, which are of a state that is no more.
  void clear_residuals() const;

  /// All tensors, in pieces that lie here.
  std::vector<StateTensor> tensors() const;
  /// The parameter of that name, if there is one.
  std::optional<StateTensor> parameter(std::string_view name) const;

  /// Collective. What differs between ranks that hold the same, the same sentence on every rank; empty: nothing.
  std::string difference() const;
  /// Takes its memory from the plan's.
  TensorStream stream() const;

 private:
  /// Bytes of a device's memory or of a home, as they are.
  class RawAccess final : public PieceAccess {
   public:
    RawAccess(const HostView& view, int64_t bytes_per_value) : view_(view), bytes_per_value_(bytes_per_value) {}
    void read(const StatePiece& piece, int64_t first, int64_t count, std::byte* to) const override {
      view_.fetch(to, piece.bytes + first * bytes_per_value_, count * bytes_per_value_);
    }
    void write(const StatePiece& piece, int64_t first, int64_t count, const std::byte* from) const override {
      view_.store(piece.bytes + first * bytes_per_value_, from, count * bytes_per_value_);
    }

   private:
    const HostView& view_;
    int64_t bytes_per_value_;
  };

  const Plan& plan() const { return parts_.plan; }
  int32_t flat_count() const { return static_cast<int32_t>(plan().flats.size()); }
  int32_t tensor_count(int32_t flat) const { return static_cast<int32_t>(plan().flats[flat].layout.tensors().size()); }
  void clear_masters_and_optimizer() const;
  void initialize_shard(const Initialize& initialize, int32_t flat, int rank, int64_t chunk,
                        std::vector<float>& values) const;
  int saving_rank() const;
  StateTensor parameter(int32_t flat, int32_t tensor) const;
  StateTensor optimizer_state(int32_t flat, int32_t tensor, std::size_t state) const;
  const PieceAccess* raw_access(const std::byte* at, DType dtype) const;

  Parts parts_;
  RawAccess access_1_{parts_.view, 1}, access_2_{parts_.view, 2}, access_4_{parts_.view, 4};
};

}  // namespace aliquot
