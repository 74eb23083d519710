#pragma once
// Machines to simulate with.

#include <string>

#include "engine/cost/simulate.h"

namespace aliquot {

struct Machine {
  std::string name;
  bool has_gpus = false;
  CostModel cost;
};

/// A preset by name (host, dgx-a100, dgx-h100, dgx-h200: rounded from published rates, not measured by us), or a JSON file with
/// any of CostModel's fields over those of host, or of the preset that its `like` names. Throws UsageError, naming the file
/// and the field, for what it cannot read.
Machine find_machine(const std::string& name_or_file);

/// The text of a file that find_machine() reads: the rates of one rank on a host, or on a GPU.
std::string machine_text(const CostModel& cost, bool has_gpus);

}  // namespace aliquot
