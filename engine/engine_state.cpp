// Bringing an engine to life, and its state in and out.
#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <functional>

#include "engine/engine.h"
#include "engine/plan/accesses.h"
#include "engine/run/copies.h"
#include "engine/run/red_zones.h"
#include "engine/run/tensor_stream.h"
#include "engine/running.h"
#include "optim/moment_code.h"
#include "sharding/comm/exchange_purpose.h"

namespace aliquot {

void Engine::materialize(const Initialize& initialize) {
  refuse_if_running("materialize");
  if (!initialize) throw UsageError("materialize() needs a function that says what the parameters begin with");
  const ExchangePurpose purpose("materialize an engine");
  const Plan evaluation = agreed_evaluation(plan());
  make_running(evaluation);
  try {
    initialize_parameters(initialize);
  } catch (...) {  // with what it began to write it must not be taken for one that can train
    compute_stream_ = std::move(running_->lanes[static_cast<std::size_t>(Lane::kCompute)]);
    running_.reset();
    throw;
  }
  world_.communicator().gather_objects("materialized");  // nobody reads a peer's shard before it is made
}

void Engine::make_running(const Plan& evaluation) {
  if (options_.check) install_fault_names();
  std::vector<std::vector<PointerSlots>> slots;
  for (const Declared& declared : declared_) slots.push_back(declared.slots);
  running_ = std::make_unique<Running>(*this, evaluation, std::move(slots));
}

/// Padding is written by nothing else, and check_copies() compares it.
void Engine::clear_masters_and_state() {
  for (int32_t f = 0; f < static_cast<int32_t>(plan_->flats.size()); ++f) {
    for (const Role role : {Role::kMaster, Role::kOptimizer}) {
      std::byte* at = running_->memory.resting(role, f);
      const Home* home = running_->homes.holding(at);
      if (at != nullptr && !(home != nullptr && home->starts_cleared()))
        running_->view.clear(at, needed_bytes(*plan_, role, f));
    }
  }
}

void Engine::initialize_parameters(const Initialize& initialize) {
  const Weights& weights = running_->weights;
  // The values, and what is converted from them.
  const int64_t staging_bytes = plan_->schedule.stream_bytes;
  const Booking booking(world_.device().ledger(), staging_bytes, Category::kStaging, "initial values");
  const int64_t chunk = std::max<int64_t>(1, staging_bytes / kStreamCopies / static_cast<int64_t>(sizeof(float)));
  std::vector<float> values;
  clear_masters_and_state();
  for (int32_t f = 0; f < static_cast<int32_t>(plan_->flats.size()); ++f) {
    const FlatSpec& flat = plan_->flats[f];
    const int64_t shard_count = flat.layout.shard_count();
    for (int r = weights.first_rank(); r <= weights.last_rank(); ++r) {
      running_->view.clear(weights.working(f, r * shard_count),
                           shard_count * element_bytes(plan_->policy.precision.compute));
      for (const Piece& piece : flat.layout.pieces(r)) {
        for (int64_t done = 0; done < piece.count; done += chunk) {
          values.resize(static_cast<std::size_t>(std::min(chunk, piece.count - done)));
          initialize(plan_->model.units[flat.unit].parameters[flat.parameters[piece.tensor]],
                     piece.tensor_offset + done, values);
          weights.write(f, r * shard_count + piece.shard_offset + done, static_cast<int64_t>(values.size()),
                        values.data());
        }
      }
    }
  }
  if (plan_->policy.check) fill_red_zones_of_values(*plan_, weights, running_->view);
  running_->forget_carried();
}

namespace {

/// The pieces of one tensor of a flat over the shards of some ranks. `at`: where element `first` of the flat lies, given
/// how many elements one value stands for.
struct Held {
  int first_rank, last_rank;
  int own_rank;  // -1: another replica's rank saves what this one holds
  int64_t elements_per_value = 1;
  std::function<std::byte*(int64_t first)> at;
};

std::vector<StatePiece> pieces_of(const FlatLayout& layout, int32_t tensor, const Held& held) {
  std::vector<StatePiece> pieces;
  for (int r = held.first_rank; r <= held.last_rank; ++r) {
    for (const Piece& piece : layout.pieces(r)) {
      if (piece.tensor != tensor) continue;
      const int64_t each = held.elements_per_value;
      pieces.push_back({piece.tensor_offset / each, (piece.count + each - 1) / each,
                        held.at(r * layout.shard_count() + piece.shard_offset), r != held.own_rank});
    }
  }
  return pieces;
}

}  // namespace

State Engine::state() {
  Running& run = running("asking for its state");
  run.require_between_steps("state()");
  run.come_to_rest();  // what the step published may still be on its way here
  State state{.step = step_count_, .tensors = {}, .scalars = {}};
  for (int32_t f = 0; f < static_cast<int32_t>(plan_->flats.size()); ++f) {
    for (int32_t t = 0; t < static_cast<int32_t>(plan_->flats[f].layout.tensors().size()); ++t) add_state(state, f, t);
  }
  state.scalars["update_count"] = update_count_;
  if (options_.precision.compute == DType::kFloat16) {
    state.scalars["loss_scale"] = scaler_.state().scale;
    state.scalars["loss_scale_chances"] = int64_t{scaler_.state().chances};
    state.scalars["loss_scale_good_steps"] = scaler_.state().good_steps;
  }
  return state;
}

/// Whose pieces this rank saves: its own, or, as other replicas have them, none.
int Engine::saving_rank() const {
  return running_->groups.replica_index() == 0 ? running_->groups.replica().rank() : -1;
}

StateTensor Engine::parameter_state(int32_t flat, int32_t tensor) const {
  const FlatLayout& layout = plan_->flats[flat].layout;
  const Weights& weights = running_->weights;
  const auto weight = [&](int64_t first) { return weights.working(flat, first); };
  return {.path = "parameters/" + layout.tensors()[tensor].name,
          .shape = layout.tensors()[tensor].shape,
          .dtype = DType::kFloat32,
          .pieces = pieces_of(layout, tensor, {weights.first_rank(), weights.last_rank(), saving_rank(), 1, weight}),
          .access = weights.access(flat)};
}

void Engine::add_state(State& state, int32_t flat, int32_t tensor) const {
  const FlatSpec& spec = plan_->flats[flat];
  const TensorSpec& what = spec.layout.tensors()[tensor];
  const Running& run = *running_;
  const int rank = run.groups.replica().rank(), saves = saving_rank();
  state.tensors.push_back(parameter_state(flat, tensor));
  if (!spec.trainable) return;
  const bool whole = plan_->schedule.zero_stage == 0;
  const int first_rank = whole ? 0 : rank, last_rank = whole ? plan_->topology.rank_count() - 1 : rank;
  const std::vector<StateSpec>& states = run.updater.states(flat);
  for (std::size_t s = 0; s < states.size(); ++s) {
    const StateSpec& kept = states[s];
    const bool by_block = kept.elements_per_value > 1;
    const auto value = [&](int64_t first) {
      return run.updater.state(flat, s) +
             (first - first_rank * spec.layout.shard_count()) / kept.elements_per_value * element_bytes(kept.dtype);
    };
    const int64_t values = (what.element_count() + kept.elements_per_value - 1) / kept.elements_per_value;
    state.tensors.push_back(
        {.path = fmt::format("optimizer/{}/{}", what.name, kept.name),
         .shape = by_block ? std::vector<int64_t>{values} : what.shape,
         .dtype = kept.dtype,
         .pieces = pieces_of(spec.layout, tensor, {first_rank, last_rank, saves, kept.elements_per_value, value}),
         .access = run.raw_access(run.updater.state(flat, s), kept.dtype),
         .code = moment_code(kept.name)});
  }
}

void Engine::adopt(const State& state) {
  running("adopting a state").require_between_steps("adopt()");
  const ExchangePurpose purpose("adopt a state");
  const auto number = [&](const std::string& name, auto otherwise) {
    const auto found = state.scalars.find(name);
    if (found == state.scalars.end()) return otherwise;
    if (const auto* value = std::get_if<decltype(otherwise)>(&found->second)) return *value;
    throw UsageError(fmt::format("the state's {} is no number of the kind that an engine keeps", name));
  };
  const LossScaler::State now = scaler_.state();
  const int64_t update_count = number("update_count", state.step);
  const int64_t chances = number("loss_scale_chances", int64_t{now.chances});
  const LossScaler::State scale = {.scale = number("loss_scale", now.scale),
                                   .chances = static_cast<int32_t>(chances),
                                   .good_steps = number("loss_scale_good_steps", now.good_steps)};
  const auto refuse = [](std::string_view name, auto value, const std::string& expected) {
    throw UsageError(fmt::format("the state's {} is {}: expected {}", name, value, expected));
  };
  if (state.step < 0) refuse("step", state.step, "a count of steps");
  if (update_count < 0 || update_count > state.step)
    refuse("update_count", update_count, fmt::format("a count from 0 to its step, {}", state.step));
  if (!(scale.scale > 0) || !std::isfinite(scale.scale)) refuse("loss_scale", scale.scale, "a positive number");
  if (chances < 0 || chances != scale.chances) refuse("loss_scale_chances", chances, "a count of 31 bits");
  if (scale.good_steps < 0) refuse("loss_scale_good_steps", scale.good_steps, "a count");
  // Nobody reads a peer's shard before it is loaded; and all go on from the same step.
  const std::string own = fmt::format("step {}, {} updates, loss scale {}", state.step, update_count, scale.scale);
  const auto all = world_.communicator().gather_objects(own);
  for (std::size_t r = 1; r < all.size(); ++r) {
    if (all[r] == all[0]) continue;
    throw UsageError(fmt::format("rank {} would go on from \"{}\", rank 0 from \"{}\"", r, all[r], all[0]));
  }
  step_count_ = state.step;
  update_count_ = update_count;
  skipped_in_a_row_ = 0;
  if (options_.precision.compute == DType::kFloat16) scaler_.restore(scale);
  running_->come_to_rest();
  running_->forget_carried();
}

void Engine::check_copies() {
  Running& run = running("comparing copies");
  run.require_between_steps("check_copies()");
  run.come_to_rest();
  const ExchangePurpose purpose("compare copies", step_count_);
  world_.communicator().gather_objects("at rest");  // what others publish here has come too
  const std::string difference = Copies(*plan_, run.groups, run.memory, run.view).difference();
  if (difference.empty()) return;
  throw FaultError(
      fmt::format("silent corruption, found after step {}: {}; go on from a checkpoint before it, and look at "
                  "the memory of that machine",
                  step_count_, difference));
}

TensorStream Engine::tensor_stream() const {
  return {world_.communicator(), world_.device().ledger(), plan_->schedule.stream_bytes};
}

/// Of the named parameter; null where there is none.
std::optional<StateTensor> Engine::parameter_state(std::string_view parameter) const {
  for (int32_t f = 0; f < static_cast<int32_t>(plan_->flats.size()); ++f) {
    const auto& tensors = plan_->flats[f].layout.tensors();
    for (int32_t t = 0; t < static_cast<int32_t>(tensors.size()); ++t) {
      if (tensors[t].name == parameter) return parameter_state(f, t);
    }
  }
  return std::nullopt;
}

void Engine::read(std::string_view parameter, const TakeValues& take) {
  running("reading a parameter").require_between_steps("read()");
  running_->come_to_rest();
  const auto tensor = parameter_state(parameter);
  if (!tensor) throw UsageError(fmt::format("there is no parameter {}", parameter));
  tensor_stream().run(fmt::format("reading {}", parameter), *tensor,
                      [&](int64_t first, std::span<const std::byte> elements) {
                        take(first, {reinterpret_cast<const float*>(elements.data()), elements.size() / sizeof(float)});
                      });
}

std::vector<float> Engine::read(std::string_view parameter) {
  std::vector<float> whole;
  if (running_ != nullptr) {
    if (const auto tensor = parameter_state(parameter))
      whole.reserve(static_cast<std::size_t>(tensor->element_count()));
  }
  read(parameter,
       [&](int64_t, std::span<const float> values) { whole.insert(whole.end(), values.begin(), values.end()); });
  return whole;
}

}  // namespace aliquot
