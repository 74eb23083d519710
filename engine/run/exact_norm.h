#pragma once
// The sum of squares of all gradients, with the same bits for every division of the elements over ranks.

#include <optional>
#include <vector>

#include "engine/run/memory/step_memory.h"
#include "engine/run/mesh_groups.h"

namespace aliquot {

/// Computes the norm for Policy::reproducible. Squares are rounded down to multiples of a unit, which is 2^-62 of the
/// power of two above the largest square. Sums of such multiples are exact, so their order does not matter. Tensor
/// groups divide a parameter into blocks that depend on the number of ranks, so a sum of rounded sums of blocks would
/// depend on it too. Reads the reduced gradients three times. The plan and the groups must outlive it.
class ExactNorm {
 public:
  ExactNorm(const Plan& plan, const MeshGroups& groups);

  /// Computes the sum on `reduce`, and overwrites kBlockSquares. Collective over the world. Blocks until the result has
  /// arrived. Returns nothing if a gradient is not finite.
  std::optional<double> sum_of_squares(Stream& reduce, const StepMemory& memory, Label label);

 private:
  /// The gradients of one flat buffer in the shard of this rank.
  struct Gradients {
    int32_t flat;
    int64_t count;
    bool is_added;  // whether this rank adds these squares; false: another rank adds the same ones
  };

  template <class Enqueue>
  void for_block_values(Stream& reduce, const StepMemory& memory, bool all, const Enqueue& enqueue);
  const std::byte* gradients(const StepMemory& memory, const Gradients& of) const;

  const Plan& plan_;
  const MeshGroups& groups_;
  Device& device_;
  std::vector<Gradients> own_;
  /// On GPUs: a copy of the block values of one flat buffer in pinned host memory. All flat buffers use it, because
  /// copies and host functions run in order on the stream.
  Buffer mirror_;
  std::vector<double> values_;  // exchanged over the world
};

}  // namespace aliquot
