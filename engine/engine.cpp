#include "engine/engine.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <fmt/format.h>

#include "engine/choose/pipeline_schedule.h"
#include "engine/options/policy_of.h"
#include "engine/plan/plan_rewriter.h"
#include "engine/session.h"
#include "sharding/comm/collective_purpose.h"
#include "sharding/state.h"
#include "sharding/state_names.h"

namespace aliquot {
namespace {

/// Ranks with different thread counts may need scratch memory of different sizes. All ranks plan with the maximum of
/// each size.
ActivationSpec max_over_ranks(ActivationSpec own, Communicator& ranks) {
  std::string bytes;
  const auto append = [&bytes](int64_t value) { bytes.append(reinterpret_cast<const char*>(&value), sizeof value); };
  for (const UseActivations& use : own.uses)
    append(use.output_bytes), append(use.kept_bytes), append(use.scratch_bytes), append(use.weight_inputs_bytes);
  append(own.backward_bytes);
  for (const std::string& all : ranks.gather_objects(bytes)) {
    if (all.size() != bytes.size()) break;  // the models of the ranks differ: materialize() reports how
    const char* at = all.data();
    const auto most = [&at](int64_t& value) {
      int64_t other = 0;
      std::memcpy(&other, at, sizeof other);
      value = std::max(value, other);
      at += sizeof other;
    };
    for (UseActivations& use : own.uses) {
      most(use.output_bytes), most(use.kept_bytes), most(use.scratch_bytes);
      int64_t weight_inputs_bytes = use.weight_inputs_bytes;
      most(weight_inputs_bytes);
      // If the ranks differ in splits_backward, materialize() reports that.
      if (use.splits_backward) use.weight_inputs_bytes = weight_inputs_bytes;
    }
    most(own.backward_bytes);
  }
  return own;
}

void refuse_shape(const std::string& parameter, const std::vector<int64_t>& shape) {
  const auto empty = std::ranges::find_if(shape, [](int64_t extent) { return extent < 1; });
  if (empty != shape.end()) {
    throw UsageError(fmt::format("{} has the extent {} in its shape [{}]: expected 1 or more", printable(parameter),
                                 *empty, fmt::join(shape, ", ")));
  }
  if (!checked_element_count(shape)) {
    throw UsageError(fmt::format(
        "{} has too many extents or elements in its shape [{}]: expected at most {} extents and 2^58 elements",
        printable(parameter), fmt::join(shape, ", "), kShapeRankLimit));
  }
}

/// Throws UsageError if two slots share a pointer, because the second address would overwrite the first.
void refuse_pointers(const std::string& parameter, const PointerSlots& slots, const std::vector<ParameterSpec>& others,
                     const std::vector<PointerSlots>& others_slots) {
  if (slots.value.empty()) {
    throw UsageError(
        fmt::format("{} has no pointer to its values: expected the address of one of the model's pointers", parameter));
  }
  const void *value = slots.value.where(), *gradient = slots.gradient.where();
  if (value == gradient)
    throw UsageError(fmt::format(
        "the values and the gradient of {} use the same pointer: expected a different pointer for each", parameter));
  for (std::size_t i = 0; i < others.size(); ++i) {
    for (const PointerSlot& taken : {others_slots[i].value, others_slots[i].gradient}) {
      if (taken.empty() || (taken.where() != value && taken.where() != gradient)) continue;
      throw UsageError(fmt::format("{} and {} use the same pointer: expected {}", others[i].tensor.name, parameter,
                                   taken.slice_count() > 0 ? "one parameter for all slices in a unit"
                                                           : "a different pointer for each parameter of a unit"));
    }
  }
}

/// Whether ALIQUOT_CHECK enables the checking mode.
bool environment_checks() {
  const char* value = std::getenv("ALIQUOT_CHECK");
  const std::string_view text = value == nullptr ? "" : value;
  if (text == "1") return true;
  if (text.empty() || text == "0") return false;
  throw UsageError(fmt::format("invalid value '{}' for ALIQUOT_CHECK: expected 0 or 1", text));
}

}  // namespace

const std::string& Unit::name() const { return engine_.declared_[index_].spec.name; }

Unit& Unit::add(std::string_view name, std::vector<int64_t> shape, PointerSlot value, PointerSlot gradient,
                const ParameterOptions& options) {
  engine_.refuse_if_materialized("Unit::add()");
  engine_.stages_.reset();
  const bool bare = name.starts_with('.');
  std::string full_name = bare ? std::string(name.substr(1)) : fmt::format("{}.{}", this->name(), name);
  auto& declared = engine_.declared_[index_];
  refuse_shape(full_name, shape);
  refuse_pointers(full_name, {value, gradient}, declared.spec.parameters, declared.slots);
  declared.spec.parameters.push_back({{std::move(full_name), std::move(shape), DType::kFloat32, options.trainable},
                                      options.decayed,
                                      options.lr_scale,
                                      options.decay_scale,
                                      options.matrix,
                                      options.split,
                                      options.partial_gradient});
  declared.slots.push_back({value, gradient});
  return *this;
}

Unit& Unit::assigns_gradients() {
  engine_.refuse_if_materialized("Unit::assigns_gradients()");
  engine_.stages_.reset();
  engine_.declared_[index_].spec.gradients = GradientMode::kAssign;
  return *this;
}

Engine::Engine(World& world, const EngineOptions& options) : world_(world), options_(options) {
  options_.check = options_.check || environment_checks();
  check(options.optimizer, options.moments);
  if (options.pipeline < 1 || world.rank_count() % options.pipeline != 0)
    throw UsageError(fmt::format("EngineOptions::pipeline is {}: expected a divisor of the number of ranks, {}",
                                 options.pipeline, world.rank_count()));
  const int stage_ranks = world.rank_count() / options.pipeline;
  if (options.tensor < 1 || stage_ranks % options.tensor != 0)
    throw UsageError(
        fmt::format("EngineOptions::tensor is {}: expected a divisor of the number of ranks of each pipeline "
                    "stage, {}",
                    options.tensor, stage_ranks));
  decider_ = std::make_unique<StepDecider>(options_, stage_ranks / options.tensor);
  if (!(options.clip >= 0.0) || !std::isfinite(options.clip))
    throw UsageError(
        fmt::format("EngineOptions::clip is {}: expected 0 (no clipping) or a positive number", options.clip));
  if (options.update_in_backward && options.clip > 0) {
    throw UsageError(fmt::format(
        "EngineOptions::update_in_backward updates units before the gradient norm is known, but EngineOptions::clip "
        "is {}: set it to 0",
        options.clip));
  }
  if (options.max_skipped < 0)
    throw UsageError(fmt::format(
        "EngineOptions::max_skipped is {}: expected 0 (no limit) or a positive number of steps", options.max_skipped));
}

Engine::~Engine() = default;

std::deque<Unit>& Engine::units() { return units_; }

Unit& Engine::add_unit(std::string name) {
  refuse_if_materialized("add_unit()");
  declared_.emplace_back().spec.name = std::move(name);
  stages_.reset();
  return units_.emplace_back(*this, static_cast<UnitId>(units_.size()));
}

void Engine::declare_order(std::vector<std::vector<UnitId>> uses) {
  refuse_if_materialized("declare_order()");
  uses_ = std::move(uses);
  stages_.reset();
}

void Engine::declare_activations(ActivationSpec activations, Recompute recompute) {
  refuse_if_materialized("declare_activations()");
  const bool can = std::ranges::any_of(activations.uses, [](const UseActivations& use) { return use.recomputable; });
  if (can && !recompute)
    throw UsageError(
        "a use is declared recomputable, but declare_activations() was called without a recompute function: pass that "
        "function");
  const ScopedCollectivePurpose purpose("declare activations");
  activations_ = max_over_ranks(std::move(activations), world_.communicator());
  recompute_ = std::move(recompute);
  stages_.reset();
}

void Engine::refuse_if_materialized(std::string_view what) const {
  if (session_)
    throw UsageError(fmt::format("{0} was called after materialize(): call {0} before materialize()", what));
}

ModelSpec Engine::model(const std::vector<UnitDeclaration>& declared) const {
  ModelSpec model;
  for (const UnitDeclaration& unit : declared) model.units.push_back(unit.spec);
  model.uses = uses_;
  if (uses_.empty()) {
    for (const Unit& unit : units_) model.uses.push_back({unit.index()});
  }
  model.activations = activations_;
  return model;
}

namespace {

/// Blocks of 8-bit state consist of consecutive elements of a slice, and a checkpoint stores blocks of full tensors.
void refuse_split_8bit_state(const ModelSpec& model, const EngineOptions& options) {
  if (options.tensor == 1 || !std::holds_alternative<AdamW8bit>(options.optimizer)) return;
  for (const UnitSpec& unit : model.units) {
    for (const ParameterSpec& parameter : unit.parameters) {
      if (parameter.split.dimension < 0 || !parameter.tensor.trainable) continue;
      throw UsageError(fmt::format(
          "EngineOptions::optimizer is adamw8bit, which cannot update {}, because it is split over a tensor "
          "group: use another optimizer",
          parameter.tensor.name));
    }
  }
}

/// The blocks of quantized weights and the keys of stochastic rounding depend on the slices of a rank.
void refuse_reproducible_slices(const EngineOptions& options) {
  if (!options.reproducible || options.tensor == 1) return;
  const auto refuse = [&](const char* what, const char* why) {
    throw UsageError(
        fmt::format("EngineOptions::reproducible cannot be combined with {} if EngineOptions::tensor is {}: {} depends "
                    "on the slices of each rank",
                    what, options.tensor, why));
  };
  if (options.quantize_weights) refuse("EngineOptions::quantize_weights", "the rounding of blocks");
  if (options.moments == DType::kBFloat16) refuse("bf16 EngineOptions::moments", "the stochastic rounding of moments");
}

}  // namespace

std::shared_ptr<const std::vector<Plan>> Engine::make_plans(const std::vector<UnitDeclaration>& declared) const {
  Policy policy = policy_of(options_);
  const ModelSpec model = this->model(declared);
  refuse_split_8bit_state(model, options_);
  refuse_reproducible_slices(options_);
  if (session_) {  // set_trainable() keeps the schedule and the cut, so that no unit moves to another pipeline stage
    const Policy& present = stages_->front().policy;
    policy.pipeline_cut = present.pipeline_cut;
    policy.pipeline_schedule = present.pipeline_schedule;
    policy.virtual_stages = present.virtual_stages;
  }
  std::vector<Plan> stages =
      choose_plans({options_.memory_budget_bytes}, model, policy, world_.topology(), options_.cost);
  rewrite_plans(stages);
  return std::make_shared<const std::vector<Plan>>(std::move(stages));
}

const std::vector<Plan>& Engine::pipeline_plans() {
  if (!stages_) stages_ = make_plans(declared_);
  return *stages_;
}

const Plan& Engine::plan() { return pipeline_plans()[own_stage()]; }

std::size_t Engine::own_stage() const {
  return static_cast<std::size_t>(world_.rank() / (world_.rank_count() / options_.pipeline));
}

void Engine::compute_on(std::unique_ptr<Stream> stream) {
  refuse_if_materialized("compute_on()");
  if (stream != nullptr && stream->lane() != Lane::kCompute)
    throw UsageError(fmt::format("compute_on() needs a stream of lane {}, but this stream has lane {}",
                                 aliquot::name(Lane::kCompute), aliquot::name(stream->lane())));
  compute_stream_ = std::move(stream);
}

void Engine::set_learning_rate(double rate) { decider_->set_learning_rate(rate); }
double Engine::loss_scale() const { return decider_->loss_scale(); }
int64_t Engine::step_count() const { return decider_->step_count(); }

}  // namespace aliquot
