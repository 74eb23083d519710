#include "engine/options/optimizer_options.h"

#include <string>

#include "kernels/system/error.h"

namespace aliquot {
namespace {

template <typename Own, typename Given>
void take(Own& own, const std::optional<Given>& given) {
  if (given) own = static_cast<Own>(*given);
}

template <typename O>
O filled(const OptimizerOptions& options) {
  O made;
  take(made.lr, options.lr);
  take(made.weight_decay, options.weight_decay);
  if constexpr (requires { made.beta1; }) take(made.beta1, options.beta1), take(made.beta2, options.beta2);
  if constexpr (requires { made.eps; }) take(made.eps, options.eps);
  if constexpr (requires { made.momentum; }) {
    take(made.momentum, options.momentum);
    take(made.nesterov, options.nesterov);
  }
  return made;
}

Muon filled_muon(const OptimizerOptions& options) {
  Muon made;
  take(made.lr, options.muon_lr);
  take(made.momentum, options.momentum);
  take(made.nesterov, options.nesterov);
  take(made.weight_decay, options.weight_decay);
  made.rest = filled<AdamW>(options);
  return made;
}

}  // namespace

Optimizer make_optimizer(const OptimizerOptions& options) {
  switch (options.kind) {
    case OptimizerKind::kAdamW: break;
    case OptimizerKind::kAdam: return filled<Adam>(options);
    case OptimizerKind::kAdamW8bit: return filled<AdamW8bit>(options);
    case OptimizerKind::kLion: return filled<Lion>(options);
    case OptimizerKind::kSgd: return filled<Sgd>(options);
    case OptimizerKind::kMuon: return filled_muon(options);
  }
  return filled<AdamW>(options);
}

void refuse_unused(const OptimizerOptions& options) {
  const auto refuse = [&](bool is_unused, const char* option) {
    if (!is_unused) return;
    throw UsageError("the option " + std::string(option) + " is none of the optimizer " +
                     std::string(word_of(kOptimizerWords, options.kind)));
  };
  std::visit(
      [&](const auto& made) {
        constexpr bool has_rest = requires { made.rest; };
        constexpr bool has_betas = has_rest || requires { made.beta1; };
        constexpr bool has_eps = has_rest || requires { made.eps; };
        constexpr bool has_momentum = requires { made.momentum; };
        refuse(!has_rest && options.muon_lr, "muon-lr");
        refuse(!has_betas && options.beta1, "betas");
        refuse(!has_eps && options.eps, "eps");
        refuse(!has_momentum && options.momentum, "momentum");
        refuse(!has_momentum && options.nesterov, "nesterov");
      },
      make_optimizer(options));
}

}  // namespace aliquot
