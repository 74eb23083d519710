#pragma once
// The state that the parts of one rank's run of `aliquot train` share.

#include <cstdint>
#include <memory>
#include <span>

#include "apps/models/backend.h"
#include "apps/models/model.h"
#include "apps/options/train_options.h"
#include "engine/engine.h"
#include "kernels/device/stream.h"
#include "sharding/world.h"

namespace aliquot {

/// Owns the options, the model and the engine of a rank. Used by the rank's own thread. The world must outlive it.
class TrainContext {
 public:
  /// `options` must be resolved. Makes the model and the engine, without large allocations. Collective. If no plan
  /// meets --memory-budget, the next call of engine().plan() throws UnavailableError on all ranks.
  TrainContext(World& world, const TrainOptions& options);
  TrainContext(const TrainContext&) = delete;
  TrainContext& operator=(const TrainContext&) = delete;

  World& world() const { return world_; }
  const TrainOptions& options() const { return options_; }
  Stream& stream() const { return *stream_; }
  Backend& backend() const { return *backend_; }
  Model& model() const { return *model_; }
  Engine& engine() const { return *engine_; }
  /// Whether the model keeps all logits; otherwise it computes them twice, tile by tile.
  bool keeps_logits() const { return keeps_logits_; }
  /// Whether this is rank 0, which prints and writes files.
  bool is_rank_zero() const { return world_.rank() == 0; }
  bool on_gpu() const { return world_.device().kind() == DeviceKind::kCuda; }
  /// The number of ranks on this rank's node.
  int64_t node_rank_count() const;
  /// The number of ranks in this rank's process.
  int64_t process_rank_count() const;

  /// Reduces `values` over all ranks in place. Collective. Returns when the result is available on the host.
  void all_reduce(std::span<double> values, Reduction reduction, Label label) const;
  /// Whether this rank's pipeline stage computes the loss.
  bool has_loss() const { return engine_->plan().stage.is_last(); }
  /// Replaces losses by their sums over the ranks of the last pipeline stage, on all ranks. Collective.
  void sum_losses(std::span<double> losses, Label label) const;

 private:
  void make_engine(bool keeps_logits);

  World& world_;
  TrainOptions options_;
  std::unique_ptr<Stream> stream_;  // runs all_reduce(); host models compute on its thread pool
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<Engine> engine_;
  bool keeps_logits_ = true;
};

}  // namespace aliquot
