#include "apps/inference/loaded_model.h"

#include <algorithm>
#include <span>

#include "apps/train/checkpoints/checkpoint_keeper.h"

namespace aliquot {

void materialize_weights(const TrainContext& context) {
  // Loading replaces all values, so random initial values would only take time.
  context.engine().materialize(
      [](const ParameterSpec&, int64_t, std::span<float> values) { std::ranges::fill(values, 0.0f); });
  context.backend().compute_on(context.engine().compute_stream());
  load_initial_weights(context);
}

}  // namespace aliquot
