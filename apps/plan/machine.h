#pragma once
// The machines on which `aliquot plan` simulates.

#include <string>

#include "engine/cost/simulate.h"

namespace aliquot {

struct Machine {
  std::string name;
  bool has_gpus = false;
  CostModel cost;
};

/// Returns a preset (host, dgx-a100, dgx-h100, dgx-h200), or reads a JSON file with fields of CostModel. Missing fields
/// are those of the preset that the field `like` names, by default host. The presets are derived from published rates,
/// not measured. Throws UsageError, naming the file and the field, if the file is invalid.
Machine find_machine(const std::string& name_or_file);

/// The text of a machine file for find_machine(), with the rates of one rank on a host or a GPU.
std::string machine_text(const CostModel& cost, bool has_gpus);

}  // namespace aliquot
