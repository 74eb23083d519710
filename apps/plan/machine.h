#pragma once
// The machines on which `aliquot plan` simulates.

#include <cstdint>
#include <optional>
#include <string>

#include "engine/cost/simulate.h"

namespace aliquot {

struct Machine {
  std::string name;
  bool has_gpus = false;
  CostModel cost;
  /// The memory of a GPU or, without GPUs, of a node.
  std::optional<int64_t> memory_bytes = {};
};

/// Returns the memory of a rank: that of its GPU, or an equal part of the node's memory. Returns nullopt if unknown.
std::optional<int64_t> rank_memory_bytes(const Machine& machine, int64_t ranks_per_node);

/// Returns a preset (host, dgx-a100, dgx-h100, dgx-h200), or reads a JSON file with fields of CostModel. Missing fields
/// are those of the preset that the field `like` names, by default host; without `like`, the memory is unknown. The
/// presets are derived from published rates, not measured, but the memory of host is that of this machine. Throws
/// UsageError, naming the file and the field, if the file is invalid.
Machine find_machine(const std::string& name_or_file);

/// The text of a machine file for find_machine(), with the rates of one rank on a host or a GPU. `memory_bytes` is the
/// memory of a GPU or, without GPUs, of a node; 0 if unknown.
std::string machine_text(const CostModel& cost, bool has_gpus, int64_t memory_bytes);

}  // namespace aliquot
