#include "apps/plan/machine.h"

#include <algorithm>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "apps/options/settings_json.h"
#include "checkpoint/file/tensor_entry.h"
#include "engine/options/nearest.h"
#include "kernels/system/error.h"
#include "kernels/system/machine_memory.h"

namespace aliquot {
namespace {

using Json = nlohmann::ordered_json;

/// Rates of a node with 8 GPUs, in bytes or floating-point operations per second. `network` is the rate of the node.
/// The others are rates of one GPU.
CostModel eight_gpus(double link, double network, double memory, double flops) {
  CostModel cost;
  cost.inside_node = {link, 1e-5};
  cost.between_nodes = {network, 2e-5};
  cost.copy_bytes_per_second = memory;
  cost.update_seconds_per_element = 28 / memory;
  cost.flops_per_second = flops;
  cost.compute_issues = false;
  return cost;
}

const std::vector<std::string> kMachineKeys = {"like",
                                               "has_gpus",
                                               "inside_node",
                                               "between_nodes",
                                               "beside_compute",
                                               "beside_compute_share",
                                               "cores_per_thread",
                                               "copy_bytes_per_second",
                                               "host_bytes_per_second",
                                               "disk_bytes_per_second",
                                               "update_seconds_per_element",
                                               "flops_per_second",
                                               "memory_bytes"};
const std::vector<std::string> kLinkKeys = {"bytes_per_second", "latency_seconds"};

void refuse_unknown_keys(const Json& object, const std::vector<std::string>& known, const std::string& path) {
  for (const auto& item : object.items()) {
    if (std::ranges::find(known, item.key()) != known.end()) continue;
    const std::string suggestion = did_you_mean(item.key(), known, "");
    throw UsageError(
        fmt::format("{}: unknown key '{}'.{}", path, printable(item.key()),
                    suggestion.empty() ? fmt::format(" Known keys are {}.", fmt::join(known, ", ")) : suggestion));
  }
}

enum class ZeroPolicy : uint8_t { kAllowZero, kRejectZero };

/// Reads an optional number into `value`. Rejects 0 by default, because a transfer at rate 0 never ends.
void read_field(const Json& object, const char* field, double& value, const std::string& path,
                ZeroPolicy zero_policy = ZeroPolicy::kRejectZero) {
  if (!object.contains(field)) return;
  const double given = object[field].is_number() ? object[field].get<double>() : -1;
  if (!(given >= 0) || (given == 0 && zero_policy == ZeroPolicy::kRejectZero)) {
    throw UsageError(fmt::format("{}: invalid value {} for {}: expected a number {}.", path, value_text(object[field]),
                                 field, zero_policy == ZeroPolicy::kAllowZero ? "of 0 or more" : "above 0"));
  }
  value = given;
}

void read_field(const Json& object, const char* field, LinkCost& link, const std::string& path) {
  if (!object.contains(field)) return;
  if (!object[field].is_object()) {
    throw UsageError(fmt::format("{}: invalid value {} for {}: expected an object with {}.", path,
                                 value_text(object[field]), field, fmt::join(kLinkKeys, " and ")));
  }
  refuse_unknown_keys(object[field], kLinkKeys, path + ": " + field);
  read_field(object[field], "bytes_per_second", link.bytes_per_second, path);
  read_field(object[field], "latency_seconds", link.latency_seconds, path, ZeroPolicy::kAllowZero);
}

constexpr int64_t kGiB = int64_t{1} << 30;

/// The physical memory of this machine, or its limit for this process; nullopt if unknown.
std::optional<int64_t> this_machine_bytes() {
  const int64_t bytes = machine_memory_bytes();
  return bytes == INT64_MAX ? std::nullopt : std::optional(bytes);
}

/// The presets have the memory that the driver offers to programs, about 90 % of the published rates of links and
/// memory, and the rate of arithmetic that large models reach.
std::optional<Machine> find_preset_machine(const std::string& name) {
  if (name == "host") return Machine{name, false, CostModel::typical_host(), this_machine_bytes()};
  if (name == "dgx-a100") return Machine{name, true, eight_gpus(2.3e11, 1.8e11, 1.6e12, 1.5e14), 79 * kGiB};
  if (name == "dgx-h100") return Machine{name, true, eight_gpus(3.5e11, 3.6e11, 2.6e12, 4.4e14), 79 * kGiB};
  if (name == "dgx-h200") return Machine{name, true, eight_gpus(3.5e11, 3.6e11, 3.7e12, 4.4e14), 139 * kGiB};
  return std::nullopt;
}

Machine read_machine(const std::string& path) {
  const Json json =
      read_settings_json("--machine", path, "; expected host, dgx-a100, dgx-h100, dgx-h200 or a JSON file of rates");
  refuse_unknown_keys(json, kMachineKeys, path);
  Machine machine{path, false, CostModel::typical_host(), std::nullopt};
  if (json.contains("like")) {
    const auto like = json["like"].is_string() ? find_preset_machine(json["like"]) : std::nullopt;
    if (!like)
      throw UsageError(fmt::format("{}: invalid value {} for like: expected host, dgx-a100, dgx-h100 or dgx-h200.",
                                   path, value_text(json["like"])));
    machine = *like;
    machine.name = path;
  }
  read_field(json, "inside_node", machine.cost.inside_node, path);
  read_field(json, "between_nodes", machine.cost.between_nodes, path);
  machine.cost.beside_compute = machine.cost.between_nodes;
  read_field(json, "beside_compute", machine.cost.beside_compute, path);
  read_field(json, "beside_compute_share", machine.cost.beside_compute_share, path, ZeroPolicy::kAllowZero);
  read_field(json, "cores_per_thread", machine.cost.cores_per_thread, path, ZeroPolicy::kAllowZero);
  read_field(json, "copy_bytes_per_second", machine.cost.copy_bytes_per_second, path);
  read_field(json, "host_bytes_per_second", machine.cost.host_bytes_per_second, path);
  read_field(json, "disk_bytes_per_second", machine.cost.disk_bytes_per_second, path);
  read_field(json, "update_seconds_per_element", machine.cost.update_seconds_per_element, path);
  read_field(json, "flops_per_second", machine.cost.flops_per_second, path);
  if (json.contains("memory_bytes")) {
    double bytes = 0;
    read_field(json, "memory_bytes", bytes, path);
    machine.memory_bytes = static_cast<int64_t>(std::min(bytes, 9e18));
  }
  if (json.contains("has_gpus")) {
    if (!json["has_gpus"].is_boolean()) {
      throw UsageError(fmt::format("{}: invalid value {} for has_gpus: expected true or false.", path,
                                   value_text(json["has_gpus"])));
    }
    machine.has_gpus = json["has_gpus"];
  }
  machine.cost.compute_issues = !machine.has_gpus;
  return machine;
}

nlohmann::ordered_json json(const LinkCost& link) {
  return {{"bytes_per_second", link.bytes_per_second}, {"latency_seconds", link.latency_seconds}};
}

}  // namespace

std::optional<int64_t> rank_memory_bytes(const Machine& machine, int64_t ranks_per_node) {
  if (!machine.memory_bytes || machine.has_gpus) return machine.memory_bytes;
  return *machine.memory_bytes / ranks_per_node;
}

std::string machine_text(const CostModel& cost, bool has_gpus, int64_t memory_bytes) {
  nlohmann::ordered_json file{{"has_gpus", has_gpus},
                              {"inside_node", json(cost.inside_node)},
                              {"between_nodes", json(cost.between_nodes)},
                              {"beside_compute", json(cost.beside_compute)},
                              {"beside_compute_share", cost.beside_compute_share},
                              {"cores_per_thread", cost.cores_per_thread},
                              {"copy_bytes_per_second", cost.copy_bytes_per_second},
                              {"host_bytes_per_second", cost.host_bytes_per_second},
                              {"disk_bytes_per_second", cost.disk_bytes_per_second},
                              {"update_seconds_per_element", cost.update_seconds_per_element},
                              {"flops_per_second", cost.flops_per_second}};
  if (memory_bytes > 0) file["memory_bytes"] = memory_bytes;
  return file.dump(2) + "\n";
}

Machine find_machine(const std::string& name) {
  if (const auto machine = find_preset_machine(name)) return *machine;
  return read_machine(name);
}

}  // namespace aliquot
