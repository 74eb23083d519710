// Bringing an engine to life, and its state in and out.
#include <algorithm>
#include <cstring>
#include <fmt/format.h>

#include "engine/engine.h"
#include "engine/running.h"
#include "engine/validate.h"

namespace aliquot {
namespace {

/// The first line in which two texts differ.
std::string first_difference(std::string_view a, std::string_view b) {
  while (!a.empty() || !b.empty()) {
    const std::string_view line_a = a.substr(0, a.find('\n')), line_b = b.substr(0, b.find('\n'));
    if (line_a != line_b) return fmt::format("\"{}\" against \"{}\"", line_a, line_b);
    a.remove_prefix(std::min(a.size(), line_a.size() + 1));
    b.remove_prefix(std::min(b.size(), line_b.size() + 1));
  }
  return "the places of buffers";
}

}  // namespace

/// Ranks that would run different schedules are told apart before any of them waits for another.
void Engine::agree() {
  auto& ranks = world_.communicator();
  const std::string own = fmt::format("{:016x} {:016x}", hash(*plan_), options_.seed);
  const auto all = ranks.gather_objects(own);
  const bool same = std::all_of(all.begin(), all.end(), [&](const std::string& theirs) { return theirs == all[0]; });
  if (same) return;
  const auto texts = ranks.gather_objects(description(*plan_));
  for (int r = 1; r < ranks.rank_count(); ++r) {
    if (all[r] == all[0]) continue;
    throw UsageError(fmt::format("rank {} would not run what rank 0 runs: {}", r,
                                 texts[r] == texts[0] ? "another seed" : first_difference(texts[0], texts[r])));
  }
}

/// Nothing runs that was not proved over all ranks.
void Engine::prove() const {
  const auto defects = validate(*plan_);
  if (defects.empty()) return;
  throw FaultError(
      fmt::format("the planner wrote a schedule that does not hold: {}. This is an error of Aliquot; please report it",
                  defects.front().sentence));
}

void Engine::materialize(const Initialize& initialize) {
  refuse_if_running("materialize");
  plan();
  agree();
  prove();
  std::vector<std::vector<PointerSlots>> slots;
  for (const Declared& declared : declared_) slots.push_back(declared.slots);
  running_ = std::make_unique<Running>(*this, std::move(slots));
  initialize_parameters(initialize);
  world_.communicator().gather_objects("materialized");  // nobody reads a peer's shard before it is made
}

void Engine::initialize_parameters(const Initialize& initialize) {
  const StepMemory& memory = running_->memory;
  const bool whole = plan_->schedule.zero_stage < 3;
  for (int32_t f = 0; f < static_cast<int32_t>(plan_->flats.size()); ++f) {
    const FlatSpec& flat = plan_->flats[f];
    const int64_t count = flat.layout.shard_count();
    for (int r = whole ? 0 : world_.rank(); r <= (whole ? world_.rank_count() - 1 : world_.rank()); ++r) {
      float* shard = whole ? memory.whole(f) + r * count : memory.own_shard(f);
      std::fill_n(shard, count, 0.0f);
      for (const Piece& piece : flat.layout.pieces(r)) {
        initialize(plan_->model.units[flat.unit].parameters[flat.parameters[piece.tensor]], piece.tensor_offset,
                   {shard + piece.shard_offset, static_cast<std::size_t>(piece.count)});
      }
    }
    if (const BufferId states = memory.current(Role::kOptimizer, f); states != kNoBuffer) {
      std::memset(memory.address(states), 0, static_cast<std::size_t>(plan_->schedule.buffers[states].size_bytes));
    }
  }
}

namespace {

/// The pieces of one tensor of a flat, `base` being where rank `first_rank`'s shard lies.
std::vector<StatePiece> pieces_of(const FlatLayout& layout, int32_t tensor, float* base, int first_rank, int last_rank,
                                  int own_rank) {
  std::vector<StatePiece> pieces;
  for (int r = first_rank; r <= last_rank; ++r) {
    for (const Piece& piece : layout.pieces(r)) {
      if (piece.tensor != tensor) continue;
      float* at = base + (r - first_rank) * layout.shard_count() + piece.shard_offset;
      pieces.push_back({piece.tensor_offset, piece.count, reinterpret_cast<std::byte*>(at), r != own_rank});
    }
  }
  return pieces;
}

}  // namespace

State Engine::state() {
  if (!running_) throw UsageError("an engine has a state once it is materialized");
  if (!running_->executor.at_start_of_step() || running_->micro_batch >= 0)
    throw UsageError("state() is for between steps");
  const int rank = world_.rank(), last = world_.rank_count() - 1;
  const int stage = plan_->schedule.zero_stage;
  State state{.step = step_count_, .tensors = {}, .scalars = {}};
  for (int32_t f = 0; f < static_cast<int32_t>(plan_->flats.size()); ++f) {
    const FlatSpec& flat = plan_->flats[f];
    for (int32_t t = 0; t < static_cast<int32_t>(flat.layout.tensors().size()); ++t) {
      const TensorSpec& tensor = flat.layout.tensors()[t];
      float* weights = stage < 3 ? running_->memory.whole(f) : running_->memory.own_shard(f);
      state.tensors.push_back(
          {.path = "parameters/" + tensor.name,
           .shape = tensor.shape,
           .dtype = DType::kFloat32,
           .pieces = pieces_of(flat.layout, t, weights, stage < 3 ? 0 : rank, stage < 3 ? last : rank, rank)});
      if (!flat.trainable) continue;
      for (std::size_t s = 0; s < running_->updater.states().size(); ++s) {
        state.tensors.push_back(
            {.path = fmt::format("optimizer/{}/{}", tensor.name, running_->updater.states()[s].name),
             .shape = tensor.shape,
             .dtype = DType::kFloat32,
             .pieces = pieces_of(flat.layout, t, running_->updater.state(f, s), stage == 0 ? 0 : rank,
                                 stage == 0 ? last : rank, rank)});
      }
    }
  }
  state.scalars["update_count"] = update_count_;
  return state;
}

void Engine::adopt(const State& state) {
  if (!running_) throw UsageError("adopt() a state once the engine is materialized");
  const auto update_count = state.scalars.find("update_count");
  step_count_ = state.step;
  update_count_ = update_count == state.scalars.end() ? state.step : std::get<int64_t>(update_count->second);
  world_.communicator().gather_objects("adopted");  // nobody reads a peer's shard before it is loaded
}

std::vector<float> Engine::read(std::string_view parameter) {
  if (!running_) throw UsageError("an engine has parameters once it is materialized");
  for (int32_t f = 0; f < static_cast<int32_t>(plan_->flats.size()); ++f) {
    const FlatLayout& layout = plan_->flats[f].layout;
    for (int32_t t = 0; t < static_cast<int32_t>(layout.tensors().size()); ++t) {
      if (layout.tensors()[t].name != parameter) continue;
      const auto* shard = reinterpret_cast<const char*>(running_->memory.own_shard(f));
      std::string own;
      for (const Piece& piece : layout.pieces(world_.rank())) {
        if (piece.tensor == t) own.append(shard + piece.shard_offset * 4, static_cast<std::size_t>(piece.count) * 4);
      }
      std::vector<float> whole(static_cast<std::size_t>(layout.tensors()[t].element_count()));
      auto* to = reinterpret_cast<char*>(whole.data());
      for (const std::string& part : world_.communicator().gather_objects(own))
        to = std::copy(part.begin(), part.end(), to);
      return whole;
    }
  }
  throw UsageError(fmt::format("there is no parameter {}", parameter));
}

}  // namespace aliquot
