#pragma once
// The input of the planner: the units of parameters of a model, and the order in which forward uses them.

#include <cstdint>
#include <string>
#include <vector>

#include "engine/plan/activations.h"
#include "sharding/layout.h"
#include "sharding/split.h"

#pragma GCC visibility push(default)
namespace aliquot {

using UnitId = int32_t;

/// Whether a unit's gradient kernels add to the gradient memory, which the engine clears first, or overwrite it.
enum class GradientMode : uint8_t { kAdd, kAssign };

/// How the gradients of a parameter that the ranks of a tensor group hold are related.
enum class TensorGradients : uint8_t {
  kSame,   // equal on all ranks: each rank has the full parameter and computes its full gradient
  kSum,    // each rank has the full parameter and computes a part of the gradient, and the engine adds the parts
  kSlice,  // each rank has a slice of the parameter and computes the gradient of this slice
};

struct ParameterSpec {
  TensorSpec tensor;  // the full parameter; its name is the parameter's full name
  bool decayed = true;
  float lr_scale = 1.0f, decay_scale = 1.0f;
  bool matrix = true;  // an optimizer of whole matrices (Muon) may update it as a matrix, if it has two dimensions
  Split split = {};
  bool partial_gradient = false;  // if not split: whether the gradients of a tensor group must be added

  /// Returns how the gradients are related in a tensor group of `tensor_ranks` ranks. With one rank, returns kSame. A
  /// frozen parameter has no gradient; if it is not split, returns kSame.
  TensorGradients gradients_over(int tensor_ranks) const {
    if (tensor_ranks == 1) return TensorGradients::kSame;
    if (split.dimension >= 0) return TensorGradients::kSlice;
    return partial_gradient && tensor.trainable ? TensorGradients::kSum : TensorGradients::kSame;
  }

  friend bool operator==(const ParameterSpec&, const ParameterSpec&) = default;
};

/// A set of parameters that is gathered together, for example a transformer block.
struct UnitSpec {
  std::string name;
  std::vector<ParameterSpec> parameters;
  GradientMode gradients = GradientMode::kAdd;

  friend bool operator==(const UnitSpec&, const UnitSpec&) = default;
};

/// `uses` is the order of forward. Each use lists the units that are gathered at the same time. A unit may have several
/// uses (a tied embedding). Backward runs in reverse order.
struct ModelSpec {
  std::vector<UnitSpec> units;
  std::vector<std::vector<UnitId>> uses;
  ActivationSpec activations = {};

  /// Throws UsageError, which names unit and parameter, in these cases: a name occurs twice; a unit is never used; a
  /// use is empty, or contains an undeclared unit, or contains a unit twice; activations are declared for another
  /// number of uses; the parts of a split do not match the shape.
  void check() const;
};

/// Parameters of one unit that share a flat buffer. They have the same element type, are all trainable or all frozen,
/// either all or none are updated as whole matrices, and they have the same TensorGradients. The layout has the shapes
/// of the largest slice of each parameter, over all ranks of a tensor group.
struct FlatSpec {
  UnitId unit;
  std::vector<int32_t> parameters;  // indices into UnitSpec::parameters, ascending
  bool trainable;
  FlatLayout layout;
  bool matrices = false;
  TensorGradients gradients = TensorGradients::kSame;

  friend bool operator==(const FlatSpec&, const FlatSpec&) = default;
};

/// Bytes of one shard of the flat buffer with elements of type `dtype`.
inline int64_t shard_bytes(const FlatSpec& flat, DType dtype) {
  return flat.layout.shard_count() * element_bytes(dtype);
}

/// Returns the flat buffers of all units, in the order of units. Each flat buffer is sharded over the `rank_count`
/// ranks of one of `replica_count` replicas. `matrices_apart` puts matrices for Muon into flat buffers of their own.
/// `red_zone_blocks`: see FlatLayout. `tensor`: the number of ranks of a tensor group.
std::vector<FlatSpec> flats(const ModelSpec& model, int rank_count, int replica_count = 1, bool matrices_apart = false,
                            int64_t red_zone_blocks = 0, int tensor = 1);

}  // namespace aliquot
#pragma GCC visibility pop
