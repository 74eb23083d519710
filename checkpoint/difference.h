#pragma once
// What two checkpoints hold differently.

#include <cstdint>
#include <string>
#include <vector>

#include "checkpoint/reader.h"

namespace aliquot {

struct TensorDifference {
  std::string path;
  std::string reason;  // only in one of them, or of another shape or dtype; empty: the elements differ
  int64_t element_count = 0;
  int64_t different_count = 0;  // elements of other bits
  int64_t worst_element = -1;   // the element of the largest difference, counted flat; the first that is not a number
  double max_difference = 0;    // |a - b| there; not a number where one of the two is none
  double a = 0, b = 0;          // its two values
  double relative_norm = 0;     // of a - b to that of a
};

struct CheckpointDifference {
  std::vector<TensorDifference> tensors;  // in order of path; those that differ alone
  std::vector<std::string> scalars;       // a line each: step and scalars that differ
};

/// Compares bit by bit, in a fixed amount of memory. Both were verified. Throws CheckpointError when one cannot be read.
CheckpointDifference compare_checkpoints(const CheckpointReader& a, const CheckpointReader& b);

/// One line, without the path: "12 of 91 elements differ, by at most 0.5 (element 3: 1 and 1.5), 0.01 of the norm".
std::string describe(const TensorDifference& difference);

/// A scalar as a person reads it: "cosine", "0.1", "[1, 2]".
std::string describe(const Scalar& scalar);

}  // namespace aliquot
