#pragma once
// The output of a search for a mesh, as tables or as JSON.

#include <string>
#include <string_view>
#include <vector>

#include "apps/metrics/metrics.h"
#include "apps/plan/mesh_search.h"

namespace aliquot {

/// Returns what limits the step the most: "computation", "waits for pipeline stages", "links inside a node" or "links
/// between nodes".
std::string_view limiting_part(const StepShares& shares);

/// Returns two tables at most 100 characters wide: the choices of each mesh, and its traffic and what limits it. If no
/// mesh fits, returns the smallest one that was found.
std::string mesh_table(const PlanOptions& options, const MeshSearch& search);

/// Returns one JSON object for each mesh of the table.
std::vector<Json> mesh_json(const MeshSearch& search);

}  // namespace aliquot
