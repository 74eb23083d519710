#pragma once
// All cuts of a small model into pipeline stages. Tests compare them with the cut that the planner finds.

#include "engine/choose/pipeline_cut.h"

namespace aliquot::testing {

/// Returns every division of `uses` uses into `stages` pipeline stages with at least one use each.
inline std::vector<PipelineCut> all_cuts(int uses, int stages) {
  if (stages == 1) return {{uses}};
  std::vector<PipelineCut> cuts;
  for (int first = 1; first <= uses - stages + 1; ++first) {
    for (PipelineCut cut : all_cuts(uses - first, stages - 1)) {
      cut.insert(cut.begin(), first);
      cuts.push_back(std::move(cut));
    }
  }
  return cuts;
}

}  // namespace aliquot::testing
