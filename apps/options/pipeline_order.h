#pragma once
// Files with the order of passes of a pipeline.

#include <string>

#include "apps/options/arguments.h"
#include "engine/plan/pass_order.h"

namespace aliquot {

/// Adds the option --pipeline-order-from, which reads the file or pipe `path` into `order` once. Both must outlive the
/// table and must not move.
void add_pipeline_order_from(OptionTable& table, std::string& path, PassOrder& order);

}  // namespace aliquot
