#include "capi/optimizer.h"

#include "kernels/system/error.h"

namespace aliquot::capi {
namespace {

template <typename Own, typename Given>
void take(Own& own, const std::optional<Given>& given) {
  if (given) own = *given;
}

void refuse(bool is_given, const char* option, const std::string& optimizer) {
  if (is_given) throw UsageError("the option " + std::string(option) + " is none of the optimizer " + optimizer);
}

/// Its own numbers, and those of AdamW for the rest.
Optimizer filled_muon(const OptimizerChoice& choice) {
  Muon made;
  take(made.lr, choice.muon_lr);
  take(made.momentum, choice.momentum);
  take(made.nesterov, choice.nesterov);
  take(made.weight_decay, choice.weight_decay);
  take(made.rest.lr, choice.lr);
  take(made.rest.beta1, choice.beta1);
  take(made.rest.beta2, choice.beta2);
  take(made.rest.eps, choice.eps);
  take(made.rest.weight_decay, choice.weight_decay);
  return made;
}

template <typename O>
Optimizer filled(const OptimizerChoice& choice) {
  refuse(choice.muon_lr.has_value(), "muon-lr", choice.name);
  O made;
  take(made.lr, choice.lr);
  take(made.weight_decay, choice.weight_decay);
  if constexpr (requires { made.beta1; }) {
    take(made.beta1, choice.beta1);
    take(made.beta2, choice.beta2);
  } else {
    refuse(choice.beta1.has_value(), "betas", choice.name);
  }
  if constexpr (requires { made.eps; }) {
    take(made.eps, choice.eps);
  } else {
    refuse(choice.eps.has_value(), "eps", choice.name);
  }
  if constexpr (requires { made.momentum; }) {
    take(made.momentum, choice.momentum);
    take(made.nesterov, choice.nesterov);
  } else {
    refuse(choice.momentum.has_value(), "momentum", choice.name);
    refuse(choice.nesterov.has_value(), "nesterov", choice.name);
  }
  return made;
}

}  // namespace

Optimizer OptimizerChoice::make() const {
  if (name == "adamw") return filled<AdamW>(*this);
  if (name == "adam") return filled<Adam>(*this);
  if (name == "adamw8bit") return filled<AdamW8bit>(*this);
  if (name == "lion") return filled<Lion>(*this);
  if (name == "sgd") return filled<Sgd>(*this);
  if (name == "muon") return filled_muon(*this);
  throw UsageError("there is no optimizer " + name + "; there are adamw, adam, adamw8bit, lion, sgd and muon");
}

}  // namespace aliquot::capi
