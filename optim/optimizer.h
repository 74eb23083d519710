#pragma once
// The optimizers a user chooses from, as values, and what each keeps beside the weights.

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <variant>
#include <vector>

#include "kernels/formats/dtype.h"

#pragma GCC visibility push(default)
namespace aliquot {

/// Adam with decoupled decay (Loshchilov and Hutter 2019); torch.optim.AdamW. DeepSpeed's "Adam" means this one.
struct AdamW {
  float lr = 3e-4f, beta1 = 0.9f, beta2 = 0.95f, eps = 1e-8f, weight_decay = 0.1f;
};

/// Adam (Kingma and Ba 2015) with the decay added to the gradient, L2; torch.optim.Adam.
struct Adam {
  float lr = 3e-4f, beta1 = 0.9f, beta2 = 0.95f, eps = 1e-8f, weight_decay = 0.0f;
};

/// Stochastic gradient descent; torch.optim.SGD: the first step fills the buffer with the gradient, undamped.
/// Without momentum it keeps no state.
struct Sgd {
  float lr = 1e-2f, momentum = 0.9f, dampening = 0.0f, weight_decay = 0.0f;
  bool nesterov = false;
};

/// Lion (Chen et al. 2023): the sign of an interpolated momentum, decay decoupled.
struct Lion {
  float lr = 1e-4f, beta1 = 0.9f, beta2 = 0.99f, weight_decay = 0.1f;
};

/// How a value becomes a code when moments are kept in eight bits.
enum class Rounding : uint8_t { kNearest, kStochastic };

/// AdamW with both moments as eight-bit codes, a scale for each block of 256 (Dettmers et al. 2022; optim/update/dynamic_code.h):
/// 2.03 bytes of state a parameter instead of 8. Everything else is AdamW's, in fp32.
struct AdamW8bit {
  float lr = 3e-4f, beta1 = 0.9f, beta2 = 0.95f, eps = 1e-8f, weight_decay = 0.1f;
  Rounding rounding = Rounding::kNearest;
};

struct MatrixShape {
  int64_t rows, columns;
};

/// What Muon's rate is multiplied by for each matrix: sqrt(max(1, rows / columns)), or 0.2 sqrt(max(rows, columns)), which
/// makes steps as large as AdamW's, so that AdamW's rate and decay serve.
enum class MuonRate : uint8_t { kOriginal, kAsAdamW };

/// Muon (Jordan et al. 2024), torch.optim.Muon: a matrix moves along its momentum made orthogonal (optim/muon/muon.h). What is no
/// matrix, or declared not to be taken as one (embeddings, the last layer), is for `rest`. The rate that a schedule gives is
/// that of `rest`; matrices go at lr / rest.lr times it.
struct Muon {
  float lr = 0.02f, momentum = 0.95f, weight_decay = 0.1f;
  bool nesterov = true;
  int iterations = 5;  // of Newton and Schulz
  float eps = 1e-7f;
  MuonRate rate = MuonRate::kOriginal;
  DType products = DType::kFloat32;  // or bf16: the iteration rounds all it stores, and still adds in fp32
  AdamW rest = {};
};

struct CustomDescription;

/// An optimizer that the library does not know: custom_optimizer() of optim/custom_rule.h makes it. Copies share one
/// description; none (as made without arguments) is refused by check().
struct CustomOptimizer {
  std::shared_ptr<const CustomDescription> description;
};

using Optimizer = std::variant<AdamW, Adam, Sgd, Lion, AdamW8bit, Muon, CustomOptimizer>;

/// State tensors a rule may keep at most: two moments, and a scale a block for each when they are quantised. And how
/// many may be in bf16: an element's random word rounds two.
inline constexpr int kMaxStates = 4, kMaxRoundedStates = 2;

/// One state tensor of every parameter. It has the parameter's shape when `elements_per_value` is 1; when that is
/// kBlockElements, one value for each of the parameter's blocks. Starts as zeros.
struct StateSpec {
  std::string_view name;  // as in checkpoints: "exp_avg", "exp_avg_sq", "momentum_buffer"
  DType dtype = DType::kFloat32;
  int64_t elements_per_value = 1;

  friend bool operator==(const StateSpec&, const StateSpec&) = default;
};

/// What `optimizer` keeps, in the order of UpdateArgs::states; of Muon, what its rest does (muon_state() is a matrix's). `moments`: fp32, or bf16 (rounded stochastically);
/// AdamW8bit keeps codes and scales whatever it is.
std::vector<StateSpec> state_specs(const Optimizer& optimizer, DType moments = DType::kFloat32);

/// What UpdateArgs::moments and ::rounding are to be for it.
DType moment_dtype(const Optimizer& optimizer, DType moments = DType::kFloat32);
Rounding rounding(const Optimizer& optimizer);

/// Bytes of one state tensor, and of all of them, beside `count` elements (a shard; whole blocks).
int64_t state_bytes(const StateSpec& spec, int64_t count);
int64_t state_bytes(const Optimizer& optimizer, DType moments, int64_t count);

/// The name used in flags and logs: "adamw", "adam", "sgd", "lion", "adamw8bit", "muon", or a custom one's own, which lives as
/// long as any copy of it.
std::string_view name(const Optimizer& optimizer);

/// The shortest decimal that reads as `value`, in double: 0.999, not 0.99900001287. What a user wrote, and what formulas
/// in double (torch's too) start from.
double decimal(float value);

/// The rate before any schedule or scaling, as decimal() has it; Muon's rest's.
double learning_rate(const Optimizer& optimizer);

/// Throws UsageError, naming the option, when one is out of its range or `moments` is neither fp32 nor bf16, or a custom
/// rule keeps too many states for bf16.
void check(const Optimizer& optimizer, DType moments = DType::kFloat32);

/// Whether a tensor of that shape is decayed: norms and biases, anything with fewer than two dimensions, are not unless
/// all are asked for.
bool is_decayed(std::span<const int64_t> shape, bool decay_all = false);

}  // namespace aliquot
#pragma GCC visibility pop
