#pragma once
// The optimizers with their options, and the state that each of them has.

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

/// Stochastic gradient descent, like torch.optim.SGD: the first step sets the momentum buffer to the gradient, without
/// dampening. Has no state if momentum is 0.
struct Sgd {
  float lr = 1e-2f, momentum = 0.9f, dampening = 0.0f, weight_decay = 0.0f;
  bool nesterov = false;
};

/// Lion (Chen et al. 2023): moves along the sign of an interpolated momentum, with decoupled weight decay.
struct Lion {
  float lr = 1e-4f, beta1 = 0.9f, beta2 = 0.99f, weight_decay = 0.1f;
};

/// The rounding of 8-bit moments to codes.
enum class Rounding : uint8_t { kNearest, kStochastic };

/// AdamW with both moments as 8-bit codes and one scale for each block of 256 (Dettmers et al. 2022;
/// optim/update/dynamic_code.h). The state takes 2.03 bytes for each parameter instead of 8. The arithmetic is that of
/// AdamW, in fp32.
struct AdamW8bit {
  float lr = 3e-4f, beta1 = 0.9f, beta2 = 0.95f, eps = 1e-8f, weight_decay = 0.1f;
  Rounding rounding = Rounding::kNearest;
};

struct MatrixShape {
  int64_t rows, columns;
};

/// The factor of Muon's learning rate for each matrix. kOriginal: sqrt(max(1, rows / columns)). kAsAdamW: 0.2
/// sqrt(max(rows, columns)), with which steps are as large as those of AdamW, so AdamW's rate and decay are suitable.
enum class MuonRate : uint8_t { kOriginal, kAsAdamW };

/// Muon (Jordan et al. 2024), like torch.optim.Muon: a matrix moves along its orthogonalized momentum
/// (optim/muon/muon.h).
/// `rest` updates tensors that are not matrices or are excluded by their declaration, such as embeddings and the last
/// layer. A schedule gives the learning rate of `rest`; that of matrices is lr / rest.lr times it.
struct Muon {
  float lr = 0.02f, momentum = 0.95f, weight_decay = 0.1f;
  bool nesterov = true;
  int iterations = 5;  // of the Newton-Schulz method
  float eps = 1e-7f;
  MuonRate rate = MuonRate::kOriginal;
  DType products = DType::kFloat32;  // with bf16 the iteration rounds each stored matrix; sums stay in fp32
  AdamW rest = {};
};

struct CustomDescription;

/// An optimizer with a custom rule, made by custom_optimizer() of optim/custom_rule.h. Copies share one description.
/// check() rejects a CustomOptimizer without description.
struct CustomOptimizer {
  std::shared_ptr<const CustomDescription> description;
};

using Optimizer = std::variant<AdamW, Adam, Sgd, Lion, AdamW8bit, Muon, CustomOptimizer>;

/// The names of the built-in optimizers, in the order of the alternatives of Optimizer.
inline constexpr std::array<std::string_view, 6> kOptimizerNames{"adamw", "adam", "sgd", "lion", "adamw8bit", "muon"};
static_assert(std::variant_size_v<Optimizer> == kOptimizerNames.size() + 1);

/// The maximum number of state tensors: two moments and, if they are quantised, the scales of each. At most
/// kMaxRoundedStates may be bf16, because one random word rounds two values.
inline constexpr int kMaxStates = 4, kMaxRoundedStates = 2;

/// A state tensor that each parameter has. If `elements_per_value` is 1, it has the shape of the parameter. If that is
/// kBlockElements, it has one value for each block of the parameter. Its initial value is zero.
struct StateSpec {
  std::string_view name;  // the name in checkpoints, such as "exp_avg", "exp_avg_sq" or "momentum_buffer"
  DType dtype = DType::kFloat32;
  int64_t elements_per_value = 1;

  friend bool operator==(const StateSpec&, const StateSpec&) = default;
};

/// The state tensors of `optimizer` in the order of UpdateArgs::states. For Muon, those of `rest`; muon_state() is that
/// of a matrix. `moments` is fp32, or bf16 with stochastic rounding. AdamW8bit ignores it: its state is codes and
/// scales.
std::vector<StateSpec> state_specs(const Optimizer& optimizer, DType moments = DType::kFloat32);

/// The values of UpdateArgs::moments and UpdateArgs::rounding for an optimizer.
DType moment_dtype(const Optimizer& optimizer, DType moments = DType::kFloat32);
Rounding rounding(const Optimizer& optimizer);

/// The size in bytes of one state tensor, or of all, for a shard of `count` elements, which is a multiple of
/// kBlockElements.
int64_t state_bytes(const StateSpec& spec, int64_t count);
int64_t state_bytes(const Optimizer& optimizer, DType moments, int64_t count);

/// The name in flags and logs: "adamw", "adam", "sgd", "lion", "adamw8bit", "muon", or the name of a custom optimizer,
/// which is valid while a copy of the optimizer exists.
std::string_view name(const Optimizer& optimizer);

/// The shortest decimal that reads as `value`, in double: 0.999, not 0.99900001287. What a user wrote, and what
/// formulas in double (torch's too) start from.
double decimal(float value);

/// The learning rate before scheduling and scaling, converted by decimal(). For Muon, that of `rest`.
double learning_rate(const Optimizer& optimizer);

/// Throws UsageError if an option is out of range, if `moments` is neither fp32 nor bf16, or if a custom rule has too
/// many states for bf16.
void check(const Optimizer& optimizer, DType moments = DType::kFloat32);

/// True if weight decay applies to a tensor of this shape. It does not apply to tensors with fewer than two dimensions,
/// such as norms and biases, unless `decay_all` is true.
bool is_decayed(std::span<const int64_t> shape, bool decay_all = false);

}  // namespace aliquot
#pragma GCC visibility pop
