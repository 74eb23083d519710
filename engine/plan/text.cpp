#include <fmt/format.h>
#include <map>

#include "engine/plan/schedule.h"
#include "engine/plan/use_collectives.h"

namespace aliquot {
namespace {

/// Names slots, such as g0 and g1, by the letter of their role and a number. The offsets of the slots of one role are
/// numbered in ascending order from 0.
class SlotNames {
 public:
  explicit SlotNames(const Schedule& schedule) {
    for (const PlannedBuffer& buffer : schedule.buffers) {
      if (!buffer.always) numbers_[buffer.role][buffer.offset_bytes] = 0;
    }
    for (auto& [role, numbers] : numbers_) {
      int next = 0;
      for (auto& [offset, number] : numbers) number = next++;
    }
  }
  std::string of(const PlannedBuffer& buffer) const {
    const int index = numbers_.at(buffer.role).at(buffer.offset_bytes), level = tree_level_of(buffer.role);
    const std::string of_level = level < 0 ? "" : fmt::format("{}.", level);
    return fmt::format("{}{}{}", info(buffer.role).letter, of_level, index);
  }

 private:
  std::map<Role, std::map<int64_t, int>> numbers_;  // key: role, then offset; value: number in the slot's name
};

std::string operand_name(const Plan& plan, const Operation& operation) {
  const auto units = units_of(plan, operation);
  const auto name_of = [&](UnitId unit) { return plan.model.units[unit].name; };
  if (belongs_to_matrix_group(operation.verb) && units.size() > 1)
    return name_of(units.front()) + ".." + name_of(units.back());
  std::string names;
  for (const UnitId unit : units) names += (names.empty() ? "" : "+") + name_of(unit);
  if (operation.verb == Verb::kUseCollective)
    names += fmt::format(" \"{}\"", collective_of(plan.model, operation).name);
  return names;
}

std::string waits(const Operation& operation) {
  std::string line;
  for (const Wait& wait : operation.after) {
    line +=
        fmt::format(" {}{}{}", wait.operation, wait.of == GroupId::kRank ? "" : "*", wait.of_previous_step ? "'" : "");
  }
  return line.empty() ? line : "after" + line;
}

}  // namespace

std::string name(Role role) {
  const int level = tree_level_of(role);
  return level < 0 ? std::string(info(role).name) : fmt::format("{} {}", info(role).name, level);
}

std::vector<UnitId> units_of(const Plan& plan, const Operation& operation) {
  switch (info(operation.verb).operand) {
    case Operand::kNone: break;
    case Operand::kUse: return plan.model.uses[operation.operand];
    case Operand::kUnit: return {operation.operand};
    case Operand::kMatrixGroup: {
      std::vector<UnitId> units;
      for (const int32_t flat : plan.matrix_groups[operation.operand].flats) {
        if (units.empty() || units.back() != plan.flats[flat].unit) units.push_back(plan.flats[flat].unit);
      }
      return units;
    }
  }
  return {};
}

std::string_view owner(const Plan& plan, const PlannedBuffer& buffer) {
  if (buffer.flat < 0) return "all units";
  if (belongs_to_use(buffer.role)) return plan.model.units[plan.model.uses[buffer.flat].front()].name;
  const int32_t flat =
      belongs_to_matrix_group(buffer.role) ? plan.matrix_groups[buffer.flat].flats.front() : buffer.flat;
  return plan.model.units[plan.flats[flat].unit].name;
}

std::string peak_moment(const Plan& plan, const Account& account) {
  return account.peaks_between_steps() ? "between steps" : title(plan, account.peak_operation);
}

std::string title(const Plan& plan, OperationId id) {
  const Operation& operation = plan.schedule.operations[id];
  const std::string place = operand_name(plan, operation);
  return fmt::format("{}{}{}", name(operation.verb), place.empty() ? "" : " ", place);
}

std::string text(const Plan& plan) {
  const Schedule& schedule = plan.schedule;
  const SlotNames names(schedule);
  std::vector<std::string> begins(schedule.operations.size()), ends(schedule.operations.size());
  for (const PlannedBuffer& buffer : schedule.buffers) {
    if (buffer.always || info(buffer.role).letter == 0) continue;
    begins[buffer.first] += " +" + names.of(buffer);
    ends[buffer.last] += " -" + names.of(buffer);
  }
  std::string lines =
      "# number verb units micro-batch lane; +buffer begins, -buffer ends; after: * on all ranks, ' of the previous "
      "step\n";
  for (std::size_t i = 0; i < schedule.operations.size(); ++i) {
    const Operation& operation = schedule.operations[i];
    std::string line =
        fmt::format("{:4}  {:<8} {:<12} m{} {:<7} {:<12} {}", i, name(operation.verb), operand_name(plan, operation),
                    operation.micro_batch, name(operation.lane), begins[i] + ends[i], waits(operation));
    while (line.back() == ' ') line.pop_back();
    lines += line + "\n";
  }
  return lines;
}

namespace {

/// FNV-1a. Detects accidental differences between plans; it is no protection against intent.
class Hash {
 public:
  void add(std::string_view bytes) {
    for (const char c : bytes) value_ = (value_ ^ static_cast<unsigned char>(c)) * 0x100000001B3u;
    value_ = (value_ ^ 0xFFu) * 0x100000001B3u;
  }
  uint64_t value() const { return value_; }

 private:
  uint64_t value_ = 0xCBF29CE484222325u;
};

}  // namespace

namespace {

constexpr std::string_view kKindNames[] = {"sum", "gather", "scatter-sum"};
constexpr std::string_view kPartNames[] = {"forward", "backward", "backward of weights"};
constexpr std::string_view kBufferNames[] = {"output", "kept", "scratch", "backward"};

/// How the ranks of a tensor group share the parameter.
std::string tensor_text(const ParameterSpec& parameter) {
  const Split& split = parameter.split;
  if (split.dimension < 0) return parameter.partial_gradient ? "  added over the tensor group\n" : "";
  std::string text = fmt::format("  split along dimension {}", split.dimension);
  for (const DimensionPart& part : split.parts) text += fmt::format(", {} in units of {}", part.length, part.unit);
  return text + "\n";
}

}  // namespace

std::string description(const Plan& plan) {
  const std::string tensor =
      plan.policy.tensor == 1 ? "" : fmt::format(", tensor groups of {} ranks", plan.policy.tensor);
  std::string lines =
      fmt::format("{} in {} replicas{} at ZeRO stage {}, {} micro-batches, {}, {} bytes of optimizer state per block\n",
                  plan.world.describe(), plan.policy.replica_count, tensor, plan.schedule.zero_stage,
                  plan.schedule.micro_batch_count, plan.policy.precision.describe(), plan.policy.state_bytes_per_block);
  if (const auto& matrices = plan.policy.matrix_updates) {
    lines += fmt::format("matrices: {} iterations, {} bytes of optimizer state per block\n", matrices->iterations,
                         matrices->state_bytes_per_block);
  }
  if (plan.policy.quantize_weights) lines += "weights are gathered in 8 bits\n";
  if (plan.policy.check_state) lines += "updates compare digests of parameters and optimizer state\n";
  if (plan.policy.replay_every != 0)
    lines += fmt::format("micro-batch 0 is replayed, and sums over ranks are repeated, every {} steps\n",
                         plan.policy.replay_every);
  if (plan.policy.quantize_gradients) lines += "gradients are sent between nodes in 8 bits\n";
  for (const UnitSpec& unit : plan.model.units) {
    for (const ParameterSpec& parameter : unit.parameters) {
      lines += fmt::format("unit {}: {} {} [{}]{}{}{} lr x {}{}\n", unit.name, parameter.tensor.name,
                           name(parameter.tensor.dtype), fmt::join(parameter.tensor.shape, ", "),
                           parameter.tensor.trainable ? "" : ", frozen", parameter.decayed ? "" : ", not decayed",
                           parameter.matrix ? "" : ", not as a matrix", parameter.lr_scale,
                           parameter.decay_scale == 1.0f ? "" : fmt::format(", decay x {}", parameter.decay_scale));
      if (plan.policy.tensor > 1) lines += tensor_text(parameter);
    }
  }
  const auto& uses = plan.model.activations.uses;
  for (std::size_t use = 0; use < uses.size(); ++use) {
    const std::string split = uses[use].splits_backward ? fmt::format(", split backward with weight inputs of {} bytes",
                                                                      uses[use].weight_inputs_bytes)
                                                        : "";
    lines +=
        fmt::format("use {}: output {} bytes, kept {} bytes, scratch {} bytes{}{}{}{}\n", use, uses[use].output_bytes,
                    uses[use].kept_bytes, uses[use].scratch_bytes, uses[use].recomputable ? ", recomputable" : "",
                    uses[use].input_in_backward ? "" : ", input not read in backward",
                    uses[use].output_in_backward ? "" : ", output not read in backward", split);
    for (const UseCollective& what : uses[use].collectives)
      lines +=
          fmt::format("collective \"{}\" of use {}: {} in {}, {} at {}, {} x {} {}{}\n", what.name, use,
                      kKindNames[static_cast<std::size_t>(what.kind)], kPartNames[static_cast<std::size_t>(what.part)],
                      kBufferNames[static_cast<std::size_t>(what.buffer)], what.offset_bytes, what.rows,
                      what.row_elements, name(what.dtype), what.in_recompute ? "" : ", not in recompute");
  }
  if (!uses.empty()) lines += fmt::format("activation gradients: {} bytes\n", plan.model.activations.backward_bytes);
  return lines + text(plan);
}

uint64_t hash(const Plan& plan) {
  Hash hash;
  hash.add(description(plan));
  hash.add(std::to_string(plan.schedule.stream_bytes));
  for (const PlannedBuffer& buffer : plan.schedule.buffers)
    hash.add(fmt::format("{} {}", buffer.offset_bytes, buffer.size_bytes));
  for (const MatrixGroup& group : plan.matrix_groups) {
    for (const OwnedMatrix& matrix : group.matrices)
      hash.add(fmt::format("{} {} {} {}", matrix.flat, matrix.tensor, matrix.owner, matrix.offset_bytes));
  }
  return hash.value();
}

}  // namespace aliquot
