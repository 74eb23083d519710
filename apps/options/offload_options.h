#pragma once
// The options that say where state lies between uses, as several commands have them.

#include <string>

#include "apps/options/option_table.h"
#include "engine/plan/policy.h"

namespace aliquot {

/// As they are given: none, host or disk:DIR.
struct OffloadOptions {
  std::string offload = "none", offload_parameters = "none";
};

void add_offload_options(OptionTable& table, OffloadOptions& options);

/// Of one that was parsed.
Offload offload_kind(const std::string& value);
/// Empty but for disk:DIR.
std::string offload_directory(const std::string& value);

}  // namespace aliquot
