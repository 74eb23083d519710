#pragma once
// Comparison of two checkpoints.

#include <cstdint>
#include <string>
#include <vector>

#include "checkpoint/reader.h"

namespace aliquot {

struct TensorDifference {
  std::string path;
  /// Why the elements were not compared, for example because the shapes differ. Empty if they were compared.
  std::string reason;
  int64_t element_count = 0;
  int64_t different_count = 0;  // number of elements whose bits differ
  int64_t worst_element = -1;   // flat index of the largest |a - b|, or of the first NaN
  double max_difference = 0;    // |a - b| of the worst element; may be NaN
  double a = 0, b = 0;          // the two values of the worst element
  double relative_norm = 0;     // norm of a - b divided by the norm of a
};

struct CheckpointDifference {
  std::vector<TensorDifference> tensors;  // only tensors that differ, sorted by path
  std::vector<std::string> scalars;       // one line for each difference in the step and the scalars
};

/// Compares two verified checkpoints bit by bit, in a fixed amount of memory. Throws CheckpointError if a checkpoint
/// cannot be read.
CheckpointDifference compare_checkpoints(const CheckpointReader& a, const CheckpointReader& b);

/// Returns one line without the path, such as "12 of 91 elements differ, by at most 0.5 (element 3: 1 and 1.5); the
/// norm of the difference is 0.01 times the norm of the first tensor".
std::string describe(const TensorDifference& difference);

/// Returns a scalar as readable text, such as "cosine", "0.1" or "[1, 2]".
std::string describe(const Scalar& scalar);

}  // namespace aliquot
