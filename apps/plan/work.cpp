#include <algorithm>
#include <utility>

#include "apps/models/parameters.h"
#include "apps/plan/use_costs.h"

namespace aliquot {
namespace {

/// The mean number of keys to which the queries of a block attend. Without a window, half of the tokens are earlier.
double mean_keys(const ModelShape& shape, std::size_t use, int64_t length) {
  const std::size_t first_block = shape.family == ModelFamily::kGpt2 ? 2 : 1;
  const auto window = static_cast<double>(shape.window_of(static_cast<int64_t>(use - first_block))),
             all = static_cast<double>(length);
  return window == 0 || window >= all ? all / 2 : window * (1 - window / (2 * all));
}

/// The floating-point operations that the forward of a use executes for one token, in products with weights and in
/// attention.
struct ForwardFlops {
  double products = 0, attention = 0;
  double trained = 0;  // the part of `products` with trainable weights, which have gradients
};

ForwardFlops forward_flops(const ModelSpec& model, std::size_t use, const ModelShape& shape, int64_t length) {
  if (use + 1 == model.uses.size()) {  // the last use is the head
    const double products = 2.0 * static_cast<double>(shape.vocabulary * shape.width);
    return {.products = products, .trained = shape.lora.exists() ? 0 : products};
  }
  double elements = 0, tables = 0, trained = 0;
  for (const UnitId unit : model.uses[use]) {
    for (const ParameterSpec& parameter : model.units[unit].parameters) {
      const auto count = static_cast<double>(parameter.tensor.element_count());
      (parameter.matrix ? elements : tables) += count;
      if (parameter.tensor.trainable) trained += count;
    }
  }
  const bool is_block = elements > static_cast<double>(2 * shape.width);  // otherwise the use is a norm
  if (tables > 0 || !is_block) return {};
  // The attention scores and their products with the values each cost 2 operations per feature and key.
  return {.products = 2.0 * elements,
          .attention = 4.0 * mean_keys(shape, use, length) * static_cast<double>(shape.query_width()),
          .trained = 2.0 * trained};
}

}  // namespace

std::vector<UseCost> estimate_use_costs(const ModelShape& shape, int64_t sequences, int64_t length,
                                        double flops_per_second) {
  const ModelSpec model = parameters_of(shape);
  const double tokens = static_cast<double>(sequences * length);
  std::vector<UseCost> uses;
  for (std::size_t use = 0; use < model.uses.size(); ++use) {
    const ForwardFlops flops = forward_flops(model, use, shape, length);
    const double products = tokens * flops.products / flops_per_second;
    const double attention = tokens * flops.attention / flops_per_second;
    const double weights = tokens * flops.trained / flops_per_second;
    uses.push_back({.forward_seconds = products + attention,
                    .backward_seconds = products + weights + 2 * attention,
                    .backward_input_seconds = products + 2 * attention});
  }
  return uses;
}

CostModel cost_of(const Machine& machine, const ModelShape& shape, const MicroBatch& batch) {
  CostModel cost = machine.cost;
  cost.samples_per_micro_batch = static_cast<double>(batch.sequences * batch.length);
  cost.uses = estimate_use_costs(shape, batch.sequences, batch.length, batch.tensor * cost.flops_per_second);
  return cost;
}

void apply_profile(CostModel& cost, const std::string& path, const MicroBatch& batch) {
  std::vector<UseCost> measured = read_profile(path, batch.sequences, batch.length);
  for (UseCost& use : measured) {
    use.forward_seconds /= batch.tensor;
    use.backward_seconds /= batch.tensor;
  }
  for (std::size_t use = 0; use < std::min(measured.size(), cost.uses.size()); ++use) {
    const UseCost& of = cost.uses[use];
    if (of.backward_seconds == 0) continue;
    measured[use].backward_input_seconds =
        measured[use].backward_seconds * *of.backward_input_seconds / of.backward_seconds;
  }
  cost.uses = std::move(measured);
}

}  // namespace aliquot
