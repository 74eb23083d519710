#pragma once
// The optimizers, their options and their state tensors.

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <variant>
#include <vector>

#include "kernels/formats/dtype.h"

#pragma GCC visibility push(default)
namespace aliquot {

/// Adam with decoupled weight decay (Loshchilov and Hutter 2019), like torch.optim.AdamW and DeepSpeed's "Adam".
struct AdamW {
  float lr = 3e-4f, beta1 = 0.9f, beta2 = 0.95f, eps = 1e-8f, weight_decay = 0.1f;
};

/// Adam (Kingma and Ba 2015) with weight decay added to the gradient (L2), like torch.optim.Adam.
struct Adam {
  float lr = 3e-4f, beta1 = 0.9f, beta2 = 0.95f, eps = 1e-8f, weight_decay = 0.0f;
};

/// Stochastic gradient descent. As in torch.optim.SGD, the first step sets the momentum buffer to the gradient, without
/// dampening. There is no state if momentum is 0.
struct Sgd {
  float lr = 1e-2f, momentum = 0.9f, dampening = 0.0f, weight_decay = 0.0f;
  bool nesterov = false;
};

/// Lion (Chen et al. 2023) moves along the sign of an interpolated momentum, with decoupled weight decay.
struct Lion {
  float lr = 1e-4f, beta1 = 0.9f, beta2 = 0.99f, weight_decay = 0.1f;
};

/// The rounding of 8-bit moments to codes.
enum class Rounding : uint8_t { kNearest, kStochastic };

/// AdamW that stores both moments as 8-bit codes with one scale per block of 256 elements (Dettmers et al. 2022;
/// optim/update/dynamic_code.h). The state takes 2.03 bytes per element instead of 8. The arithmetic is the fp32
/// arithmetic of AdamW.
struct AdamW8bit {
  float lr = 3e-4f, beta1 = 0.9f, beta2 = 0.95f, eps = 1e-8f, weight_decay = 0.1f;
  Rounding rounding = Rounding::kNearest;
};

struct MatrixShape {
  int64_t rows, columns;
};

/// The factor by which Muon multiplies the learning rate of each matrix. kOriginal: sqrt(max(1, rows / columns)).
/// kAsAdamW: 0.2 sqrt(max(rows, columns)). Steps are then about as large as those of AdamW, so the learning rate and
/// weight decay of AdamW are suitable.
enum class MuonRate : uint8_t { kOriginal, kAsAdamW };

/// Muon (Jordan et al. 2024). Like torch.optim.Muon, it moves a matrix along its orthogonalized momentum
/// (optim/muon/muon.h). `rest` updates the tensors that are not matrices and those whose declaration excludes them from
/// Muon, such as embeddings and the last layer. A learning-rate schedule sets the rate at which `rest` updates tensors
/// in a step. In the same step, the learning rate of matrices is this rate times lr / rest.lr.
struct Muon {
  float lr = 0.02f, momentum = 0.95f, weight_decay = 0.1f;
  bool nesterov = true;
  int iterations = 5;  // number of Newton-Schulz iterations
  float eps = 1e-7f;
  MuonRate rate = MuonRate::kOriginal;
  DType products = DType::kFloat32;  // kBFloat16 rounds each matrix that an iteration stores; sums stay in fp32
  AdamW rest = {};
};

struct CustomDescription;

/// An optimizer with a custom rule. custom_optimizer() in optim/custom_rule.h creates it. Copies share one description.
/// check() rejects a CustomOptimizer without a description.
struct CustomOptimizer {
  std::shared_ptr<const CustomDescription> description;
};

using Optimizer = std::variant<AdamW, Adam, Sgd, Lion, AdamW8bit, Muon, CustomOptimizer>;

/// The names of the built-in optimizers, in the order of the alternatives of Optimizer.
inline constexpr std::array<std::string_view, 6> kOptimizerNames{"adamw", "adam", "sgd", "lion", "adamw8bit", "muon"};
static_assert(std::variant_size_v<Optimizer> == kOptimizerNames.size() + 1);

/// The maximum number of state tensors: two moments and, if the moments are quantized, the scales of each moment. At
/// most kMaxRoundedStates of them can be bf16, because one random word rounds two values.
inline constexpr int kMaxStates = 4, kMaxRoundedStates = 2;

/// A state tensor that each parameter has. If `elements_per_value` is 1, the state tensor has the shape of the
/// parameter. If `elements_per_value` is kBlockElements, the state tensor has one value per block of the parameter. All
/// values are initially zero.
struct StateSpec {
  std::string_view name;  // the name in checkpoints, such as "exp_avg", "exp_avg_sq" or "momentum_buffer"
  DType dtype = DType::kFloat32;
  int64_t elements_per_value = 1;

  friend bool operator==(const StateSpec&, const StateSpec&) = default;
};

/// Returns the state tensors of `optimizer` in the order of UpdateArgs::states. For Muon, these are the state tensors
/// of `rest`; muon_state() returns the state tensor of a matrix. `moments` is fp32, or bf16 with stochastic rounding.
/// AdamW8bit ignores `moments`, because its state consists of codes and scales.
std::vector<StateSpec> state_specs(const Optimizer& optimizer, DType moments = DType::kFloat32);

/// Return the values of UpdateArgs::moments and UpdateArgs::rounding for an optimizer.
DType moment_dtype(const Optimizer& optimizer, DType moments = DType::kFloat32);
Rounding rounding(const Optimizer& optimizer);

/// Return the size in bytes of one state tensor, or of all state tensors, for a shard of `count` elements. `count` is a
/// multiple of kBlockElements.
int64_t state_bytes(const StateSpec& spec, int64_t count);
int64_t state_bytes(const Optimizer& optimizer, DType moments, int64_t count);

/// Returns the name in flags and logs: "adamw", "adam", "sgd", "lion", "adamw8bit", "muon", or the name of a custom
/// optimizer. The name of a custom optimizer is valid while a copy of the optimizer exists.
std::string_view name(const Optimizer& optimizer);

/// Converts to double the shortest decimal number that parses as `value`: 0.999 instead of 0.99900001287. The result is
/// the number that the user wrote. Formulas in double, also those of PyTorch, start from that number.
double decimal(float value);

/// Returns the learning rate before scheduling and scaling, converted by decimal(). For Muon, this is the learning rate
/// of `rest`.
double learning_rate(const Optimizer& optimizer);

/// Throws UsageError if an option is out of range, or if `moments` is neither fp32 nor bf16. Also throws UsageError if
/// `moments` is bf16 and a custom rule has more than kMaxRoundedStates optimizer states.
void check(const Optimizer& optimizer, DType moments = DType::kFloat32);

/// Returns whether weight decay applies to a tensor of this shape. It does not apply to tensors with fewer than two
/// dimensions, such as norms and biases, unless `decay_all` is true.
bool is_decayed(std::span<const int64_t> shape, bool decay_all = false);

}  // namespace aliquot
#pragma GCC visibility pop
