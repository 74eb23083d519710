#include "engine/plan/policy.h"

#include <fmt/format.h>

#include "optim/muon/muon.h"

namespace aliquot {

std::optional<int> recompute_count(std::string_view word) {
  if (word == "auto") return kRecomputeAsNeeded;
  if (word == "block") return kRecomputeAll;
  return word == "none" ? std::optional(0) : std::nullopt;
}

bool accumulates_into_shard(const Policy& policy) {
  if (policy.accumulate_into != AccumulateInto::kAuto) return policy.accumulate_into == AccumulateInto::kShard;
  return policy.zero_stage >= 2 || policy.reproducible;
}

PassOrder pass_order_of(const Policy& policy) {
  if (!policy.evaluation && !policy.pass_order.empty()) return policy.pass_order;
  if (!policy.evaluation)
    return pass_order(policy.pipeline_schedule, policy.pipeline, policy.micro_batch_count, policy.virtual_stages);
  PassOrder order(static_cast<std::size_t>(policy.pipeline));
  for (int32_t stage = 0; stage < virtual_stage_count(policy); ++stage)
    order[static_cast<std::size_t>(stage % policy.pipeline)].push_back({stage, PassKind::kForward, 0});
  return order;
}

void apply_optimizer(Policy& policy, const Optimizer& optimizer, DType moments) {
  policy.state_bytes_per_block = state_bytes(optimizer, moments, kBlockElements);
  policy.matrix_updates.reset();
  if (const auto* muon = std::get_if<Muon>(&optimizer))
    policy.matrix_updates = {state_bytes(muon_state(moments), kBlockElements), muon->iterations};
}

std::string Precision::describe() const {
  std::string text = fmt::format("{}, gradients {}", name(compute), name(gradients));
  if (sent() != gradients) text += fmt::format(" sent in {}", name(sent()));
  if (has_master()) text += split() ? ", split master" : ", fp32 master";
  return text;
}

}  // namespace aliquot
