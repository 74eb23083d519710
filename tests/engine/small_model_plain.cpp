// The reference training of the small model, without the engine and in one thread.
#include <cmath>

#include "kernels/elementwise/encoding_host.h"
#include "kernels/elementwise/host_loops.h"
#include "optim/clip.h"
#include "optim/muon/orthogonalize.h"
#include "optim/norm_tree.h"
#include "optim/rule.h"
#include "sharding/comm/combine_in_tree.h"
#include "tests/engine/small_model.h"

namespace aliquot::testing_model {
namespace {

using Store = std::vector<std::vector<float>>;  // one vector per tensor, in the order of shapes()

Store zeros() {
  Store store;
  for (int t = 0; t < kTensors; ++t) store.emplace_back(element_count(t), 0.0f);
  return store;
}

const HostLoops& loops() { return host_loops(Isa::kPlain); }

/// Like Store, but with values of any type.
using Bytes = std::vector<std::vector<std::byte>>;

Bytes zero_bytes(DType dtype) {
  Bytes bytes;
  for (int t = 0; t < kTensors; ++t) bytes.emplace_back(element_count(t) * element_bytes(dtype));
  return bytes;
}

Tensors pointers(Bytes& bytes) {
  Tensors tensors;
  for (int t = 0; t < kTensors; ++t) tensors.at[t] = bytes[t].data();
  return tensors;
}

/// Rounds the masters to the working copy. Rounds halfway cases away from zero for bf16, and to even for fp16.
void round_working(Bytes& to, const Store& masters, DType dtype) {
  for (int t = 0; t < kTensors; ++t) {
    if (dtype == DType::kBFloat16) {
      loops().split(reinterpret_cast<uint16_t*>(to[t].data()), nullptr, masters[t].data(), element_count(t));
    } else {
      loops().cast(to[t].data(), dtype, masters[t].data(), DType::kFloat32, element_count(t));
    }
  }
}

/// Quantizes and dequantizes the values. If `residual` is set, adds it first and stores the new rounding error in it.
std::vector<float> quantize_and_dequantize(std::vector<float> values, std::vector<float>* residual = nullptr) {
  const std::size_t count = values.size();
  values.resize((count + kBlockElements - 1) / kBlockElements * kBlockElements);
  const auto padded = static_cast<int64_t>(values.size());
  std::vector<std::byte> code(static_cast<std::size_t>(encoded_bytes(padded)));
  const auto round = [&](const std::vector<float>& from) {
    std::vector<float> to(from.size());
    encode_blocks({from.data(), DType::kFloat32, code.data(), nullptr, 1, padded}, 0, padded);
    decode_blocks({code.data(), to.data(), DType::kFloat32, 1, padded}, 0, padded);
    return to;
  };
  if (residual != nullptr) {
    for (std::size_t i = 0; i < count; ++i) values[i] += (*residual)[i];
  }
  std::vector<float> back = round(values);
  if (residual != nullptr) {
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = std::isfinite(back[i]) ? values[i] - back[i] : 0;
    *residual = round(values);
    residual->resize(count);
  }
  back.resize(count);
  return back;
}

Store widened(const Bytes& from, DType dtype) {
  Store store = zeros();
  for (int t = 0; t < kTensors; ++t)
    loops().cast(store[t].data(), DType::kFloat32, from[t].data(), dtype, element_count(t));
  return store;
}

void quantize_working(Bytes& working, DType dtype) {
  Store wide = widened(working, dtype);
  for (int t = 0; t < kTensors; ++t) {
    const auto values = quantize_and_dequantize(wide[t]);
    loops().cast(working[t].data(), dtype, values.data(), DType::kFloat32, element_count(t));
  }
}

Store rounded(const Store& from, DType dtype) {
  Bytes narrow = zero_bytes(dtype);
  for (int t = 0; t < kTensors; ++t)
    loops().cast(narrow[t].data(), dtype, from[t].data(), DType::kFloat32, element_count(t));
  return widened(narrow, dtype);
}

void run_micro_batch(SmallModel& model, Bytes& gradients, int64_t step, int micro_batch, int rank, float loss_scale) {
  model.gradient = pointers(gradients);
  const auto data = samples(step, micro_batch, rank);
  for (int use = 0; use < kUses; ++use) model.forward(use, data);
  for (int use = kUses - 1; use >= 0; --use) model.backward(use, loss_scale);
}

Store add_in_tree(const std::vector<Store>& leaves) {
  Store sum = zeros();
  for (std::size_t t = 0; t < sum.size(); ++t) {
    for (std::size_t i = 0; i < sum[t].size(); ++i) {
      sum[t][i] = combine_in_tree<float>(
          static_cast<int>(leaves.size()), [&](int r) { return leaves[r][t][i]; },
          [](float a, float b) { return a + b; });
    }
  }
  return sum;
}

double sum_of_squares(const Store& gradients) {
  std::vector<NormTensor> tensors;
  for (std::size_t t = 0; t < gradients.size(); ++t) {
    const auto count = static_cast<int64_t>(gradients[t].size());
    tensors.push_back({shapes()[t].unit + "." + shapes()[t].name, (count + kBlockElements - 1) / kBlockElements});
  }
  const NormTree tree(tensors);
  std::vector<NormNode> nodes;
  std::vector<double> values;
  for (std::size_t t = 0; t < gradients.size(); ++t) {
    std::vector<double> squares(tensors[t].block_count);
    host_loops(Isa::kPlain)
        .block_squares(squares.data(), gradients[t].data(), static_cast<int64_t>(gradients[t].size()));
    const NormSpan span{static_cast<int32_t>(t), 0, tensors[t].block_count, 0};
    const LocalNormSums parts(tree, {&span, 1});
    values.resize(values.size() + parts.nodes().size());
    parts.sums(squares.data(), {values.data() + values.size() - parts.nodes().size(), parts.nodes().size()});
    nodes.insert(nodes.end(), parts.nodes().begin(), parts.nodes().end());
  }
  return GlobalNormSum(tree, nodes).finish(values);
}

/// The sum that ExactNorm computes, in one 128-bit integer: each square is rounded down to a multiple of 2^-62 of the
/// power of two above the largest square.
double exact_sum_of_squares(const Store& gradients) {
  float largest = 0;
  for (const auto& tensor : gradients) {
    for (const float element : tensor) {
      if (!std::isfinite(element)) return std::numeric_limits<double>::infinity();
      largest = std::max(largest, std::abs(element));
    }
  }
  int exponent = 0;
  std::frexp(static_cast<double>(largest) * static_cast<double>(largest), &exponent);
  __extension__ unsigned __int128 sum = 0;
  for (const auto& tensor : gradients) {
    for (const float element : tensor) {
      const double square = static_cast<double>(element) * static_cast<double>(element);
      sum += static_cast<uint64_t>(std::ldexp(square, 62 - exponent));
    }
  }
  return std::ldexp(static_cast<double>(sum), exponent - 62);
}

/// Updates one tensor with one rule.
void update(std::vector<float>& values, const std::vector<float>& gradients, std::vector<std::vector<float>*> states,
            const Rule& rule, float factor, float decay) {
  std::visit(
      [&](const auto& whole_rule) {
        const auto at = whole_rule.at(1.0f, decay);
        for (std::size_t i = 0; i < values.size(); ++i) {
          float state[kMaxStates] = {};
          for (std::size_t s = 0; s < states.size(); ++s) state[s] = (*states[s])[i];
          values[i] = at.update(values[i], gradients[i] * factor, state);
          for (std::size_t s = 0; s < states.size(); ++s) (*states[s])[i] = state[s];
        }
      },
      rule);
}

/// Updates one matrix with Muon: momentum, orthogonalization, update.
void update_matrix(const Muon& muon, double lr, std::vector<float>& weights, const std::vector<float>& gradients,
                   std::vector<float>& momentum, const Shape& of, float factor) {
  const MatrixShape shape{of.shape[0], of.shape[1]};
  std::vector<float> direction(weights.size());
  update(direction, gradients, {&momentum}, muon_blend_rule(muon), factor, 1.0f);
  std::vector<double> scratch(static_cast<std::size_t>(orthogonalize_scratch_bytes(shape)) / sizeof(double));
  ThreadPool pool(1);
  orthogonalize_on_host({muon, direction.data(), shape, reinterpret_cast<std::byte*>(scratch.data())}, pool);
  update(weights, direction, {}, muon_apply_rule(muon, lr), 1.0f, 1.0f);
}

struct UpdateInputs {
  const Optimizer& optimizer;
  double lr;
  int64_t count;
  float factor;
};

void update(Store& parameters, const Store& gradients, std::vector<Store>& states, Store& momenta,
            const UpdateInputs& of) {
  const Rule rule = rule_at(of.optimizer, of.lr, of.count);
  const auto* muon = std::get_if<Muon>(&of.optimizer);
  for (std::size_t t = 0; t < parameters.size(); ++t) {
    if (muon != nullptr && is_matrix(static_cast<int>(t))) {
      update_matrix(*muon, of.lr, parameters[t], gradients[t], momenta[t], shapes()[t], of.factor);
      continue;
    }
    std::vector<std::vector<float>*> of_tensor;
    for (Store& state : states) of_tensor.push_back(&state[t]);
    update(parameters[t], gradients[t], of_tensor, rule, of.factor, shapes()[t].shape.size() > 1 ? 1.0f : 0.0f);
  }
}

bool accumulates_into_shard(const EngineOptions& options) {
  if (options.accumulate_into == AccumulateInto::kAuto) return options.zero_stage >= 2 || options.reproducible;
  return options.accumulate_into == AccumulateInto::kShard;
}

/// Sums the gradients of each node, quantizes these sums with error feedback and adds them. If `residual` has more
/// entries than there are nodes, each node is a replica, and the total is quantized again.
Store add_between_nodes(const std::vector<Store>& leaves, std::size_t node_count, std::vector<Store>& residual) {
  const std::size_t ranks_per_node = leaves.size() / node_count;
  std::vector<Store> nodes;
  for (std::size_t node = 0; node < node_count; ++node) {
    nodes.push_back(
        add_in_tree({leaves.begin() + node * ranks_per_node, leaves.begin() + (node + 1) * ranks_per_node}));
    for (std::size_t t = 0; t < nodes[node].size(); ++t)
      nodes[node][t] = quantize_and_dequantize(nodes[node][t], &residual[node][t]);
  }
  Store sum = add_in_tree(nodes);
  for (std::size_t t = 0; t < sum.size() && residual.size() > node_count; ++t)
    sum[t] = quantize_and_dequantize(sum[t], &residual[node_count][t]);
  return sum;
}

struct SummedGradients {
  Store exact;  // the sum before it is rounded to the type of the gradients
  double loss = 0;
};

struct StepInputs {
  int rank_count, step;
  float loss_scale;
  std::vector<Store>* residual;  // error-feedback residuals; null if gradients are not quantized
};

/// Sums the gradients of one step over ranks and micro-batches in the order of the engine.
SummedGradients sum_gradients(SmallModel& model, const Settings& settings, const StepInputs& of) {
  const auto [rank_count, step, loss_scale, residual] = of;
  const EngineOptions& options = settings.options;
  const Precision& precision = options.precision;
  const bool into_shard = accumulates_into_shard(options);
  std::vector<Bytes> own(rank_count, zero_bytes(precision.gradients));
  // The gradients to add: one Store per rank or, if reproducible, one per rank and micro-batch.
  std::vector<Store> leaves;
  SummedGradients sums{zeros()};
  for (int m = 0; m < options.accumulate; ++m) {
    for (int r = 0; r < rank_count; ++r) {
      if (into_shard) own[r] = zero_bytes(precision.gradients);
      run_micro_batch(model, own[r], step, m, r, loss_scale);
      if (r == 0) sums.loss += model.loss();
    }
    if (!into_shard && m + 1 < options.accumulate) continue;
    if (!options.reproducible) leaves.clear();
    for (int r = 0; r < rank_count; ++r)
      leaves.push_back(rounded(widened(own[r], precision.gradients), precision.sent()));
    const Store added =
        residual == nullptr ? add_in_tree(leaves) : add_between_nodes(leaves, settings.nodes, *residual);
    if (options.reproducible || !into_shard || m == 0) {
      sums.exact = added;
      continue;
    }
    const Store before = rounded(sums.exact, precision.gradients), more = rounded(added, precision.gradients);
    for (std::size_t t = 0; t < before.size(); ++t) {
      for (std::size_t i = 0; i < before[t].size(); ++i) sums.exact[t][i] = before[t][i] + more[t][i];
    }
  }
  return sums;
}

}  // namespace

Outcome train_without_engine(int rank_count, const Settings& settings) {
  const EngineOptions& options = settings.options;
  const Precision& precision = options.precision;
  Store masters = zeros();
  for (std::size_t t = 0; t < masters.size(); ++t) {
    const std::string name = shapes()[t].unit + "." + shapes()[t].name;
    for (std::size_t i = 0; i < masters[t].size(); ++i) masters[t][i] = initial_value(name, static_cast<int64_t>(i));
  }
  std::vector<Store> states(state_specs(options.optimizer).size(), zeros());
  Store momenta = zeros();
  std::vector<Store> residual(settings.nodes + (options.replicas > 1 ? 1 : 0), zeros());
  SmallModel model(precision);
  Bytes working = zero_bytes(precision.compute);
  model.value = pointers(working);
  Outcome outcome;
  LossScaler scaler;
  if (precision.compute == DType::kFloat16) scaler = LossScaler(options.loss_scaling);
  int64_t updates = 0;
  for (int step = 0; step < settings.steps; ++step) {
    round_working(working, masters, precision.compute);
    if (options.quantize_weights) quantize_working(working, precision.compute);
    const SummedGradients sums =
        sum_gradients(model, settings,
                      {rank_count, step, static_cast<float>(scaler.scale()),
                       options.quantize_gradients && settings.nodes > 1 ? &residual : nullptr});
    const double parts = static_cast<double>(rank_count) * options.accumulate * scaler.scale();
    const bool is_exact = options.reproducible && !options.update_in_backward;
    const double norm = gradient_norm(
        is_exact ? exact_sum_of_squares(rounded(sums.exact, precision.gradients)) : sum_of_squares(sums.exact), parts);
    if (std::isfinite(norm)) {
      update(masters, rounded(sums.exact, precision.gradients), states, momenta,
             {options.optimizer, settings.learning_rate, ++updates,
              gradient_factor(clip_factor(norm, options.clip), parts)});
    }
    const double scale = scaler.scale();
    scaler.step_done(!std::isfinite(norm));
    if (!std::isfinite(norm) || scaler.scale() != scale) residual.assign(residual.size(), zeros());
    outcome.losses.push_back(sums.loss);
    outcome.norms.push_back(norm);
  }
  for (const auto& tensor : masters) outcome.parameters.insert(outcome.parameters.end(), tensor.begin(), tensor.end());
  return outcome;
}

}  // namespace aliquot::testing_model
