// The small model trained through the engine, and trained plainly.
#include <map>

#include "kernels/host_loops.h"
#include "optim/clip.h"
#include "optim/norm_tree.h"
#include "optim/rule.h"
#include "sharding/tree.h"
#include "tests/engine/small_model.h"

namespace aliquot::testing_model {

void declare(Engine& engine, SmallModel& model) {
  engine.add_unit("scale").add("weight", {kWidths[0]}, &model.value.scale, &model.gradient.scale, {.decayed = false});
  for (int l = 0; l < kLayers; ++l) {
    engine.add_unit("layer." + std::to_string(l))
        .add("weight", {kWidths[l + 1], kWidths[l]}, &model.value.weight[l], &model.gradient.weight[l])
        .add("bias", {kWidths[l + 1]}, &model.value.bias[l], &model.gradient.bias[l], {.decayed = false});
  }
  engine.declare_order({{0}, {1}, {2}, {3, 0}});
  engine.materialize([](const ParameterSpec& parameter, int64_t offset, std::span<float> values) {
    for (std::size_t i = 0; i < values.size(); ++i)
      values[i] = initial_value(parameter.tensor.name, offset + static_cast<int64_t>(i));
  });
}

void train_micro_batch(Engine& engine, SmallModel& model, int64_t step, int micro_batch, int rank) {
  auto& units = engine.units();
  const auto data = samples(step, micro_batch, rank);
  engine.micro_batch();
  for (int use = 0; use < kUses; ++use) {
    auto live = use == 0        ? units[0].forward()
                : use < kLayers ? units[use].forward()
                                : engine.forward({&units[kLayers], &units[0]});
    model.forward(use, data);
  }
  for (int use = kUses - 1; use >= 0; --use) {
    auto live = use == 0        ? units[0].backward()
                : use < kLayers ? units[use].backward()
                                : engine.backward({&units[kLayers], &units[0]});
    model.backward(use);
  }
}

Outcome train(World& world, const Settings& settings) {
  SmallModel model;
  Engine engine(world, settings.options);
  declare(engine, model);
  engine.set_learning_rate(settings.learning_rate);
  Outcome outcome;
  for (int step = 0; step < settings.steps; ++step) {
    double loss = 0;
    for (int m = 0; m < settings.options.accumulate; ++m) {
      train_micro_batch(engine, model, step, m, world.rank());
      loss += model.loss();
    }
    const StepReport report = engine.step();
    double shared = world.rank() == 0 ? loss : 0;
    const auto stream = world.device().make_stream(Lane::kCompute);
    world.communicator().all_reduce(*stream, {&shared, 1}, Reduction::kSum, {"loss"});
    outcome.losses.push_back(shared);
    outcome.norms.push_back(report.gradient_norm);
  }
  for (const Shape& shape : shapes()) {
    const auto whole = engine.read(shape.unit + "." + shape.name);
    outcome.parameters.insert(outcome.parameters.end(), whole.begin(), whole.end());
  }
  return outcome;
}

namespace {

using Store = std::vector<std::vector<float>>;  // by tensor, in the order of shapes()

Store zeros() {
  Store store;
  for (const Shape& shape : shapes()) {
    int64_t count = 1;
    for (const int64_t extent : shape.shape) count *= extent;
    store.emplace_back(count, 0.0f);
  }
  return store;
}

Tensors pointers(Store& store) {
  Tensors tensors;
  tensors.scale = store[0].data();
  for (int l = 0; l < kLayers; ++l) {
    tensors.weight[l] = store[1 + 2 * l].data();
    tensors.bias[l] = store[2 + 2 * l].data();
  }
  return tensors;
}

void run_micro_batch(SmallModel& model, Store& gradients, int64_t step, int micro_batch, int rank) {
  model.gradient = pointers(gradients);
  const auto data = samples(step, micro_batch, rank);
  for (int use = 0; use < kUses; ++use) model.forward(use, data);
  for (int use = kUses - 1; use >= 0; --use) model.backward(use);
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
    const NormParts parts(tree, {&span, 1});
    values.resize(values.size() + parts.nodes().size());
    parts.sums(squares.data(), {values.data() + values.size() - parts.nodes().size(), parts.nodes().size()});
    nodes.insert(nodes.end(), parts.nodes().begin(), parts.nodes().end());
  }
  return NormTotal(tree, nodes).finish(values);
}

void update(Store& parameters, const Store& gradients, std::vector<Store>& states, const Rule& rule, float factor) {
  for (std::size_t t = 0; t < parameters.size(); ++t) {
    const float decay = shapes()[t].shape.size() > 1 ? 1.0f : 0.0f;
    std::visit(
        [&](const auto& whole_rule) {
          const auto at = whole_rule.at(1.0f, decay);
          for (std::size_t i = 0; i < parameters[t].size(); ++i) {
            float state[kMaxStates] = {};
            for (std::size_t s = 0; s < states.size(); ++s) state[s] = states[s][t][i];
            parameters[t][i] = at.update(parameters[t][i], gradients[t][i] * factor, state);
            for (std::size_t s = 0; s < states.size(); ++s) states[s][t][i] = state[s];
          }
        },
        rule);
  }
}

bool accumulates_into_shard(const EngineOptions& options) {
  if (options.accumulate_into == AccumulateInto::kAuto) return options.zero_stage >= 2;
  return options.accumulate_into == AccumulateInto::kShard;
}

}  // namespace

Outcome train_plainly(int rank_count, const Settings& settings) {
  const EngineOptions& options = settings.options;
  Store parameters = zeros();
  for (std::size_t t = 0; t < parameters.size(); ++t) {
    const std::string name = shapes()[t].unit + "." + shapes()[t].name;
    for (std::size_t i = 0; i < parameters[t].size(); ++i)
      parameters[t][i] = initial_value(name, static_cast<int64_t>(i));
  }
  std::vector<Store> states(state_specs(options.optimizer).size(), zeros());
  SmallModel model;
  model.value = pointers(parameters);
  Outcome outcome;
  for (int step = 0; step < settings.steps; ++step) {
    double loss = 0;
    std::vector<Store> own(rank_count, zeros());
    Store sum = zeros();
    for (int m = 0; m < options.accumulate; ++m) {
      for (int r = 0; r < rank_count; ++r) {
        if (accumulates_into_shard(options)) own[r] = zeros();
        run_micro_batch(model, own[r], step, m, r);
        if (r == 0) loss += model.loss();
      }
      if (accumulates_into_shard(options)) {
        const Store added = add_in_tree(own);
        for (std::size_t t = 0; t < sum.size(); ++t) {
          for (std::size_t i = 0; i < sum[t].size(); ++i) sum[t][i] = m == 0 ? added[t][i] : sum[t][i] + added[t][i];
        }
      }
    }
    if (!accumulates_into_shard(options)) sum = add_in_tree(own);
    const double parts = static_cast<double>(rank_count) * options.accumulate;
    const double norm = gradient_norm(sum_of_squares(sum), parts);
    update(parameters, sum, states, rule_at(options.optimizer, settings.learning_rate, step + 1),
           gradient_factor(clip_factor(norm, options.clip), parts));
    outcome.losses.push_back(loss);
    outcome.norms.push_back(norm);
  }
  for (const auto& tensor : parameters)
    outcome.parameters.insert(outcome.parameters.end(), tensor.begin(), tensor.end());
  return outcome;
}

}  // namespace aliquot::testing_model
