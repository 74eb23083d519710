#include "apps/train/train_context.h"

#include <algorithm>

#include "apps/models/cuda/backend_cuda.h"
#include "apps/models/make_model.h"
#include "apps/train/train_settings.h"
#include "apps/train/wrap.h"
#include "kernels/device/host_stream.h"
#include "kernels/gemm/product_choices.h"

namespace aliquot {

TrainContext::TrainContext(World& world, const TrainOptions& options)
    : world_(world), options_(options), stream_(world.device().make_stream(Lane::kCompute)) {
  if (on_gpu()) {
    // Inference has many different numbers of rows, so it measures no products.
    backend_ = make_cuda_backend(
        world.device(),
        {.rounding = options.products, .choices_file = product_choices_file(), .measures = !options.frozen},
        options.attention);
  } else {
    options_.world.threads_per_rank = as_host_stream(*stream_).pool().thread_count();
    backend_ = make_host_backend(as_host_stream(*stream_).pool());
  }
  make_engine(!options_.frozen);
  try {
    if (options_.memory_budget) engine_->plan();
  } catch (const UnavailableError&) {  // thrown on all ranks
    make_engine(false);
  }
}

/// Without `keeps_logits` the backward pass computes the logits again, tile by tile, which costs one more matrix
/// product. The constructor therefore tries `keeps_logits` first. It keeps the logits if any plan that does so meets
/// the budget, even a plan that recomputes blocks.
void TrainContext::make_engine(bool keeps_logits) {
  keeps_logits_ = keeps_logits;
  ModelOptions model = model_options(options_, world_.rank());
  model.keep_logits = keeps_logits;
  engine_.reset();
  model_ = make_model(model_shape(options_), model, *backend_);
  engine_ = std::make_unique<Engine>(world_, engine_options(options_));
  wrap(*engine_, *model_, {.decay_all = options_.decay_all, .trainable = !options_.frozen});
}

int64_t TrainContext::node_rank_count() const {
  const Topology& topology = world_.topology();
  return static_cast<int64_t>(topology.ranks_of_node(topology.node_of_rank[world_.rank()]).size());
}

int64_t TrainContext::process_rank_count() const { return launched_process_count() > 1 ? 1 : world_.rank_count(); }

/// The order of additions does not depend on the number of pipeline stages, and not on the size of tensor groups if it
/// is a power of two.
void TrainContext::sum_losses(std::span<double> losses, Label label) const {
  if (options_.engine.pipeline * options_.engine.tensor == 1) return all_reduce(losses, Reduction::kSum, label);
  constexpr auto kMaxCount = static_cast<size_t>(Communicator::kSmallCount);
  for (; !losses.empty(); losses = losses.subspan(std::min(losses.size(), kMaxCount)))
    engine_->sum_losses(losses.first(std::min(losses.size(), kMaxCount)));
}

void TrainContext::all_reduce(std::span<double> values, Reduction reduction, Label label) const {
  constexpr auto kMaxCount = static_cast<size_t>(Communicator::kSmallCount);
  while (!values.empty()) {
    const size_t count = std::min(values.size(), kMaxCount);
    world_.communicator().all_reduce(*stream_, values.first(count), reduction, label);
    stream_->synchronize();
    values = values.subspan(count);
  }
}

}  // namespace aliquot
