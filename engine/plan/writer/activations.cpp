// The buffers of activations that the model declares. Only the compute lane accesses them.
#include <algorithm>
#include <limits>
#include <map>
#include <tuple>
#include <utility>

#include "engine/plan/sizes.h"
#include "engine/plan/writer/step_writer.h"

namespace aliquot {

std::vector<bool> recomputed_uses(const Plan& plan) { return recomputed_uses(plan.model, plan.policy, plan.stage); }

std::vector<bool> recomputed_uses(const ModelSpec& model, const Policy& policy, const PipelineStage& stage) {
  const std::vector<UseActivations>& uses = model.activations.uses;
  std::vector<bool> recomputed(model.uses.size(), false);
  const std::vector<int>& by_stage = policy.recompute_by_stage;
  int left = by_stage.empty() ? policy.recompute : by_stage[static_cast<std::size_t>(stage.index)];
  if (policy.evaluation || uses.empty()) left = 0;
  for (const VirtualStage& run : stage.runs) {
    for (int32_t use = run.first_use; use < run.end_use && left > 0; ++use) {
      recomputed[use] = uses[use].recomputable;
      if (recomputed[use]) --left;
    }
  }
  return recomputed;
}

std::vector<bool> split_uses(const Plan& plan) {
  std::vector<bool> split(plan.model.uses.size(), false);
  if (plan.model.activations.uses.empty()) return split;
  std::vector<int32_t> use_count(plan.model.units.size(), 0);
  for (const auto& use : plan.model.uses) {
    for (const UnitId unit : use) ++use_count[unit];
  }
  const auto trains = [&](UnitId unit) {
    return std::ranges::any_of(plan.flats_of_unit[unit], [&](int32_t f) { return plan.flats[f].trainable; });
  };
  for (std::size_t use = 0; use < split.size(); ++use) {
    const auto& units = plan.model.uses[use];
    split[use] = plan.model.activations.uses[use].splits_backward && std::ranges::any_of(units, trains) &&
                 std::ranges::all_of(units, [&](UnitId unit) { return use_count[unit] == 1; });
  }
  return split;
}

StepWriter::KeptActivations& StepWriter::kept(int32_t micro_batch, int32_t use) {
  const auto slot = static_cast<std::size_t>(micro_batch % schedule_.micro_batches_in_flight);
  return kept_activations_[slot * model_.uses.size() + static_cast<std::size_t>(use)];
}

StepWriter::Lifetime& StepWriter::activation_gradients(int32_t micro_batch) {
  return activation_gradients_[static_cast<std::size_t>(micro_batch % schedule_.micro_batches_in_flight)];
}

/// `code`: the first and the last operation of the visit.
void StepWriter::track_activations(int32_t v, const Lifetime& code) {
  const ActivationSpec& spec = model_.activations;
  if (spec.uses.empty()) return;
  const Visit& visit = visits_[v];
  const int32_t use = visit.use, m = visit.micro_batch;
  const UseActivations& of = spec.uses[use];
  KeptActivations& own = kept(m, use);
  add_activation_buffer(Role::kScratch, use, visit, code);
  const bool backward = is_backward(visit.verb);
  if (use > 0 && (!backward || of.input_in_backward)) kept(m, use - 1).output.last = code.last;
  if (visit.verb == Verb::kForward) {
    own.output = code;
    const bool discarded = recomputed_[use] || policy_.evaluation;
    if (discarded) add_activation_buffer(Role::kSavedActivations, use, visit, code);
  }
  if (!backward) own.saved_from = code.first;
  const bool for_input = computes_input_gradients(visit.verb);
  if (for_input) {
    if (of.output_in_backward) own.output.last = code.last;
    Lifetime& gradients = activation_gradients(m);
    if (use == visit.run->last_use() && stage_.is_last(*visit.run)) gradients.first = code.first;
    gradients.last = code.last;
  }
  if (visit.verb == Verb::kBackwardInput) own.weight_inputs_from = code.first;
  if (visit.verb == Verb::kBackwardWeights)
    add_activation_buffer(Role::kWeightInputs, use, visit, {std::exchange(own.weight_inputs_from, kNone), code.last});
  if (computes_weight_gradients(visit.verb))
    add_activation_buffer(Role::kSavedActivations, use, visit, {own.saved_from, code.last});
  if (visit.ends_pass) {
    pass_ends_.push_back(code.last);
    send(visit, code.last);
  }
  if (for_input && use == visit.run->first_use)
    add_activation_buffer(Role::kActivationGradients, -1, visit, activation_gradients(m));
  add_finished_outputs(visit);
}

/// Whether the second part of the split backward of the next use will read the output of `use`.
bool StepWriter::is_read_later(int32_t use, const Visit& visit) {
  return use < visit.run->last_use() && kept(visit.micro_batch, use + 1).weight_inputs_from != kNone &&
         model_.activations.uses[use + 1].input_in_backward;
}

/// Ends the lifetime of outputs after their last reader: the backward of the same use, the second part of a split
/// backward of the next use, or, in an evaluation, the forward of the next use. The input of the stage ends with the
/// backward of the first use. A stage that sends data keeps it at least until it is sent.
void StepWriter::add_finished_outputs(const Visit& visit) {
  const int32_t m = visit.micro_batch;
  const auto end = [&](int32_t use) {
    const KeptActivations& of = kept(m, use);
    add_activation_buffer(Role::kOutputActivations, use, visit, of.output, of.sent);
  };
  const bool begins_split = visit.verb == Verb::kBackwardInput, ends_split = visit.verb == Verb::kBackwardWeights;
  const bool reads_input = model_.activations.uses[visit.use].input_in_backward;
  if (computes_input_gradients(visit.verb)) {
    if (!is_read_later(visit.use, visit)) end(visit.use);
    const bool ends_input = visit.use == visit.run->first_use && !visit.run->is_first();
    if (ends_input && !(begins_split && reads_input)) end(visit.use - 1);
  }
  if (ends_split && reads_input && visit.use > 0) end(visit.use - 1);
  if (!policy_.evaluation) return;
  if (visit.use > 0) end(visit.use - 1);
  if (visit.use == visit.run->last_use()) end(visit.use);
}

/// `sent`: an operation that sends the buffer, or kNone. Both this operation and the last operation of `life` must end
/// before the memory is used again.
void StepWriter::add_activation_buffer(Role role, int32_t use, const Visit& visit, Lifetime life, OperationId sent) {
  if (needed_bytes(plan_, role, use) == 0) return;
  std::vector<Wait> ends = {{life.last}};
  if (sent != kNone && sent != life.last) ends.push_back({sent});
  add_buffer(role, use, {life.first, std::max(life.last, sent)}, std::move(ends));
  if (info(role).per_micro_batch) draft_.buffers.back().buffer.micro_batch = visit.micro_batch;
}

OperationId StepWriter::transfer(Verb verb, const VirtualStage& run, int32_t micro_batch, std::vector<Wait> after) {
  const bool to_next = info(verb).group == GroupId::kNextStage;
  return add(verb, to_next ? run.last_use() : run.first_use - 1, micro_batch, std::move(after));
}

/// Receives the input of a pass. The lifetime of the input's buffer begins with this operation.
void StepWriter::receive(const PipelineAction& pass) {
  const int32_t m = pass.micro_batch;
  const VirtualStage& run = stage_.run(pass.stage);
  if (pass.pass == PassKind::kForward) {
    KeptActivations& input = kept(m, run.first_use - 1);
    input = {};
    const OperationId receive = transfer(Verb::kReceiveActivations, run, m);
    input.output = {receive, receive};
    input.received = receive;
  } else {
    const OperationId receive = transfer(Verb::kReceiveGradients, run, m);
    activation_gradients(m) = {receive, receive};
    kept(m, run.last_use()).gradient_received = receive;
  }
}

/// Adds the waits of a use for transfers between pipeline stages. The first use of a pass needs the received input or
/// gradient. A recompute that writes the stage's output again must wait until the first output has been sent.
void StepWriter::wait_for_transfers(const Visit& visit, OperationId compute) {
  const int32_t m = visit.micro_batch;
  const VirtualStage& run = *visit.run;
  if (visit.verb == Verb::kForward && visit.use == run.first_use && !run.is_first())
    wait(compute, {kept(m, visit.use - 1).received});
  if (computes_input_gradients(visit.verb) && visit.use == run.last_use() && !stage_.is_last(run))
    wait(compute, {kept(m, visit.use).gradient_received});
  if (visit.verb == Verb::kRecompute && model_.activations.uses[visit.use].output_in_backward)
    wait(compute, {kept(m, visit.use).sent});
}

/// Extends the lifetime of sent data until the end of the next pass. The next pass then gets other memory. So it does
/// not wait for the send.
void StepWriter::add_spare_send_slots() {
  using Key = std::tuple<Role, int32_t, int32_t>;  // role, owner and micro-batch; such buffers must not overlap
  const auto key_of = [](const PlannedBuffer& buffer) { return Key{buffer.role, buffer.flat, buffer.micro_batch}; };
  const auto is_sent = [&](const PlannedBuffer& buffer) {
    return info(buffer.role).category == Category::kActivations && is_send(draft_.operations[buffer.last].verb);
  };
  std::map<Key, std::vector<OperationId>> begins;
  for (const auto& [buffer, ends] : draft_.buffers) begins[key_of(buffer)].push_back(buffer.first);
  for (auto& [buffer, ends] : draft_.buffers) {
    if (!is_sent(buffer)) continue;
    const auto next = std::ranges::upper_bound(pass_ends_, buffer.last);
    if (next == pass_ends_.end()) continue;
    OperationId last = *next;
    for (const OperationId first : begins[key_of(buffer)]) {
      if (first > buffer.last) last = std::min(last, first - 1);
    }
    buffer.last = last;
  }
}

/// Sends the result of the pass that ends with this visit.
void StepWriter::send(const Visit& visit, OperationId compute) {
  const int32_t m = visit.micro_batch;
  const VirtualStage& run = *visit.run;
  if (visit.verb == Verb::kForward && !stage_.is_last(run))
    kept(m, visit.use).sent = transfer(Verb::kSendActivations, run, m, {{compute}});
  if (computes_input_gradients(visit.verb) && !run.is_first())
    activation_gradients(m).last = transfer(Verb::kSendGradients, run, m, {{compute}});
}

}  // namespace aliquot
