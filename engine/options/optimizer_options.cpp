#include "engine/options/optimizer_options.h"

#include <string>

#include "kernels/system/error.h"

namespace aliquot {
namespace {

template <typename Own, typename Given>
void set_if_given(Own& own, const std::optional<Given>& given) {
  if (given) own = static_cast<Own>(*given);
}

template <typename O>
O make_with_options(const OptimizerOptions& options) {
  O made;
  set_if_given(made.lr, options.lr);
  set_if_given(made.weight_decay, options.weight_decay);
  if constexpr (requires { made.beta1; })
    set_if_given(made.beta1, options.beta1), set_if_given(made.beta2, options.beta2);
  if constexpr (requires { made.eps; }) set_if_given(made.eps, options.eps);
  if constexpr (requires { made.momentum; }) {
    set_if_given(made.momentum, options.momentum);
    set_if_given(made.nesterov, options.nesterov);
  }
  return made;
}

Muon make_muon_with_options(const OptimizerOptions& options) {
  Muon made;
  set_if_given(made.lr, options.muon_lr);
  set_if_given(made.momentum, options.momentum);
  set_if_given(made.nesterov, options.nesterov);
  set_if_given(made.weight_decay, options.weight_decay);
  set_if_given(made.products, options.muon_products);
  made.rest = make_with_options<AdamW>(options);
  return made;
}

}  // namespace

Optimizer make_optimizer(const OptimizerOptions& options) {
  switch (options.kind) {
    case OptimizerKind::kAdamW: break;
    case OptimizerKind::kAdam: return make_with_options<Adam>(options);
    case OptimizerKind::kAdamW8bit: return make_with_options<AdamW8bit>(options);
    case OptimizerKind::kLion: return make_with_options<Lion>(options);
    case OptimizerKind::kSgd: return make_with_options<Sgd>(options);
    case OptimizerKind::kMuon: return make_muon_with_options(options);
  }
  return make_with_options<AdamW>(options);
}

void refuse_unused(const OptimizerOptions& options) {
  const auto refuse = [&](bool is_unused, const char* option) {
    if (!is_unused) return;
    throw UsageError("the option " + std::string(option) + " does not apply to the optimizer " +
                     std::string(enum_name(kOptimizerWords, options.kind)));
  };
  std::visit(
      [&](const auto& made) {
        constexpr bool has_rest = requires { made.rest; };
        constexpr bool has_betas = has_rest || requires { made.beta1; };
        constexpr bool has_eps = has_rest || requires { made.eps; };
        constexpr bool has_momentum = requires { made.momentum; };
        refuse(!has_rest && options.muon_lr, "muon-lr");
        refuse(!has_rest && options.muon_products, "muon-products");
        refuse(!has_betas && options.beta1, "betas");
        refuse(!has_eps && options.eps, "eps");
        refuse(!has_momentum && options.momentum, "momentum");
        refuse(!has_momentum && options.nesterov, "nesterov");
      },
      make_optimizer(options));
}

}  // namespace aliquot
