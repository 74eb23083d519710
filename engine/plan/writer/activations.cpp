// The buffers of activations that the model declares. Only the compute lane accesses them.
#include <algorithm>
#include <limits>

#include "engine/plan/sizes.h"
#include "engine/plan/writer/step_writer.h"

namespace aliquot {

std::vector<bool> recomputed_uses(const ModelSpec& model, const Policy& policy) {
  std::vector<bool> recomputed(model.uses.size(), false);
  int left = policy.evaluation ? 0 : policy.recompute;
  for (std::size_t use = 0; use < model.activations.uses.size() && left > 0; ++use) {
    recomputed[use] = model.activations.uses[use].recomputable;
    if (recomputed[use]) --left;
  }
  return recomputed;
}

StepWriter::KeptActivations& StepWriter::kept(const Visit& visit, int32_t use) {
  const auto slot = static_cast<std::size_t>(visit.micro_batch % schedule_.micro_batches_in_flight);
  return kept_activations_[slot * model_.uses.size() + static_cast<std::size_t>(use)];
}

void StepWriter::track_activations(int32_t v, OperationId compute) {
  const ActivationSpec& spec = model_.activations;
  if (spec.uses.empty()) return;
  const Visit& visit = visits_[v];
  const auto use = visit.use, last_use = static_cast<int32_t>(spec.uses.size()) - 1;
  const UseActivations& of = spec.uses[use];
  KeptActivations& own = kept(visit, use);
  add_activation_buffer(Role::kScratch, use, visit, {compute, compute});
  const bool backward = visit.verb == Verb::kBackward;
  if (use > 0 && (!backward || of.input_in_backward)) kept(visit, use - 1).output.last = compute;
  if (visit.verb == Verb::kForward) {
    own.output = {compute, compute};
    const bool discarded = recomputed_[use] || policy_.evaluation;
    if (discarded) add_activation_buffer(Role::kSavedActivations, use, visit, {compute, compute});
  }
  if (!backward) own.saved_from = compute;
  if (backward) {
    if (of.output_in_backward) own.output.last = compute;
    add_activation_buffer(Role::kSavedActivations, use, visit, {own.saved_from, compute});
    if (use == last_use) activation_gradients_from_ = compute;
    if (use == 0) add_activation_buffer(Role::kActivationGradients, -1, visit, {activation_gradients_from_, compute});
  }
  add_finished_outputs(visit);
}

/// Ends the lifetime of outputs after their last reader: the backward of the same use, or, in an evaluation, the
/// forward of the next use.
void StepWriter::add_finished_outputs(const Visit& visit) {
  const auto last_use = static_cast<int32_t>(model_.uses.size()) - 1;
  const auto end = [&](int32_t use) {
    add_activation_buffer(Role::kOutputActivations, use, visit, kept(visit, use).output);
  };
  if (visit.verb == Verb::kBackward) return end(visit.use);
  if (!policy_.evaluation) return;
  if (visit.use > 0) end(visit.use - 1);
  if (visit.use == last_use) end(last_use);
}

void StepWriter::add_activation_buffer(Role role, int32_t use, const Visit& visit, Lifetime life) {
  if (needed_bytes(plan_, role, use) == 0) return;
  add_buffer(role, use, life, {{life.last}});
  if (info(role).per_micro_batch) draft_.buffers.back().buffer.micro_batch = visit.micro_batch;
}

}  // namespace aliquot
