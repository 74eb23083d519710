#pragma once
// This rank's part of the training state, between steps.

#include <optional>
#include <string_view>
#include <vector>

#include "engine/options.h"
#include "engine/run/memory/weights.h"
#include "engine/run/mesh_groups.h"
#include "engine/run/tensor_stream.h"
#include "engine/run/updater.h"
#include "sharding/state.h"

namespace aliquot {

/// Initializes parameters, masters and optimizer state, lists them as tensors for checkpoints, and compares copies.
/// Used between steps, while all streams are idle, from the rank's own thread. Everything passed must outlive it.
class ShardedState {
 public:
  struct Parts {
    const Plan& plan;
    const MeshGroups& groups;
    const OffloadStores& offload_stores;
    const HostView& view;
    const StepMemory& memory;
    const Weights& weights;
    const Updater& updater;
  };
  explicit ShardedState(const Parts& parts) : parts_(parts) {}

  /// Sets parameters to the values of `initialize`, and all other state to zero.
  void initialize(const Initialize& initialize) const;
  /// Clears the error-feedback residuals. Call after loading a state, because the residuals belong to the state before
  /// it.
  void clear_residuals() const;

  /// All tensors of the state, each with the pieces that this rank holds.
  std::vector<StateTensor> tensors() const;
  std::optional<StateTensor> parameter(std::string_view name) const;

  /// Collective. Describes the first difference between copies on different ranks. Returns the same text on every rank,
  /// or an empty text if all copies are equal.
  std::string difference() const;
  /// Returns a TensorStream with Schedule::stream_bytes of staging memory.
  TensorStream stream() const;

 private:
  /// Copies bytes from and to device memory or an offload store, without conversion.
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
  const ParameterSpec& spec_of(int32_t flat, int32_t tensor) const;
  Slice slice_of(int32_t flat, int32_t tensor) const;
  int saving_rank(int32_t flat) const;
  StateTensor parameter(int32_t flat, int32_t tensor) const;
  StateTensor optimizer_state(int32_t flat, int32_t tensor, std::size_t state) const;
  const PieceAccess* raw_access(const std::byte* at, DType dtype) const;

  Parts parts_;
  RawAccess access_1_{parts_.view, 1}, access_2_{parts_.view, 2}, access_4_{parts_.view, 4};
};

}  // namespace aliquot
