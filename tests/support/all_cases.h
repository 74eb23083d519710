#pragma once
// The suite runs a selection of the combinations of a test's settings. The long suite runs all of them.

#include <cstdlib>

namespace aliquot::test {

/// Whether tests run all combinations, as in the long suite, which sets ALIQUOT_ALL_CASES.
inline bool runs_all_cases() { return std::getenv("ALIQUOT_ALL_CASES") != nullptr; }

/// Selects every `stride`-th combination of a test, and all combinations in the long suite. Call next() once for each
/// combination. In nested loops, choose a stride that has no common factor with the number of iterations of the inner
/// loop. Then every value of the inner loop occurs.
class CaseSelection {
 public:
  /// `first`: the number of the first combination that is selected.
  explicit CaseSelection(int stride, int first = 0) : stride_(stride), count_(stride - first) {}

  /// Returns whether to run the next combination.
  bool next() { return count_++ % stride_ == 0 || runs_all_cases(); }

 private:
  int stride_, count_;
};

}  // namespace aliquot::test
