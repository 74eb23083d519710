#pragma once
// The suite runs a selection of the combinations of a test's settings. The long suite runs all of them.

#include <cstdlib>

namespace aliquot::test {

/// Whether a test runs all combinations. The long suite sets ALIQUOT_ALL_CASES.
inline bool runs_all_cases() { return std::getenv("ALIQUOT_ALL_CASES") != nullptr; }

/// Selects every `stride`-th case in the order in which a test produces them, or all cases if runs_all_cases(). In
/// nested loops, a stride without a common factor with the number of inner cases selects every inner case in turn.
class CaseSelection {
 public:
  explicit CaseSelection(int stride, int first = 0) : stride_(stride), count_(stride - first) {}

  /// Returns whether to run the next case.
  bool next() { return count_++ % stride_ == 0 || runs_all_cases(); }

 private:
  int stride_, count_;
};

}  // namespace aliquot::test
