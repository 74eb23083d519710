#pragma once
// The option --mesh, which sets --pipeline, --replicas and --tensor together, or leaves them to a search.

#include <optional>
#include <string>
#include <vector>

#include "apps/options/arguments.h"
#include "engine/options.h"
#include "engine/plan/mesh.h"

namespace aliquot {

/// The value of --mesh. Without the option, `given` is unset and `automatic` is false.
struct MeshOption {
  std::optional<Mesh> given;  // PxRxSxT
  bool automatic = false;     // the mesh, and the options that belong to it, are chosen by simulation
  std::string reason = {};    // with a chosen mesh: why it was chosen, one line
  /// The names of the options that the user gave, without those that a configuration file sets to their defaults. A
  /// search keeps their values.
  std::vector<std::string> kept = {};

  bool keeps(std::string_view name) const;
};

/// Returns the numbers of pipeline stages, replicas, ranks of a shard group and ranks of a tensor group, for example
/// "2x1x4x8".
std::string mesh_text(const Mesh& mesh);

/// Parses "auto" or the output of mesh_text().
MeshOption parse_mesh(std::string_view text);

/// Adds the option --mesh. `mesh` must outlive the table and must not move.
void add_mesh(OptionTable& table, MeshOption& mesh);

/// Removes the values of a configuration file that --mesh on the command line replaces: those of --mesh, --pipeline,
/// --pipeline-cut, --pipeline-order-from, --virtual-stages, --replicas, --tensor and, unless --mesh is "auto", --ranks.
/// With a global batch, also those of --accumulate. If the file has a mesh that is not "auto", and --mesh is "auto",
/// also those of the options that a search chooses.
void remove_replaced_by_mesh(std::vector<GivenOption>& given);

/// Sets the pipeline stages, replicas and tensor groups of `engine` to those of MeshOption::given, and sets
/// MeshOption::kept. `given` is the result of remove_replaced_by_mesh(). Throws UsageError, naming both options, if
/// --pipeline, --replicas, --tensor or --ranks in `given` contradicts the mesh.
void apply_mesh(MeshOption& mesh, const std::vector<GivenOption>& given, EngineOptions& engine);

}  // namespace aliquot
