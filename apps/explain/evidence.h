#pragma once
// The flight records of a failed run.

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "apps/explain/collectives.h"
#include "engine/plan/mesh.h"
#include "sharding/flight/flight_file.h"

namespace aliquot {

/// One or more flight records of one run, at most one for each rank, with their collectives matched. Members point into
/// `records`.
struct Evidence {
  explicit Evidence(std::vector<FlightRecord> flights);
  Evidence(const Evidence&) = delete;
  Evidence& operator=(const Evidence&) = delete;

  const FlightRecord& of(int rank) const { return *by_rank.at(rank); }
  bool has(int rank) const { return by_rank.contains(rank); }
  /// Whether the rank's record is truncated. The rank may then have issued more collectives than its record has.
  bool is_truncated(int rank) const { return has(rank) && !of(rank).complete; }
  /// Whether the records have the start and end times of this collective, not only the time of issue.
  bool is_timed(const CollectiveRecord& collective) const { return timed || collective.is_rendezvous; }
  /// Whether the rank started the operation. If the records have no times, an issued operation counts as started.
  bool has_reached(const FlightEntry& entry) const { return !timed || entry.begun >= 0; }

  /// Whether the rank failed because of its own error, not because of the error of another rank.
  bool failed_itself(int rank) const;
  /// The longest execution of model code in the rank's record. An execution that had not ended counts up to the writing
  /// of the record. Returns null if there is none.
  const FlightModelCode* longest_model_code(int rank) const;
  double model_code_seconds(int rank, const FlightModelCode& code) const;
  /// The seconds that the rank waited in `entry` without running model code. A receive may wait for data of a later
  /// micro-batch while the rank computes.
  double blocked_seconds(int rank, const FlightEntry& entry) const;

  bool has_pipeline() const { return mesh && mesh->pipeline > 1; }
  /// Returns the coordinates of the rank in the dimensions that have several ranks: "pipeline stage 1, shard 0".
  /// Returns "" if the run has neither a pipeline nor replicas.
  std::string coordinates_text(int rank) const;
  /// Like aliquot::ranks_text(). With a pipeline, adds the pipeline stages: "ranks 2 and 3 (pipeline stage 1)".
  std::string ranks_text(const std::vector<int>& ranks) const;

  std::vector<FlightRecord> records;  // sorted by rank
  std::map<int, const FlightRecord*> by_rank;
  std::vector<CollectiveRecord> collectives;
  /// Whether collectives have start and end times. Ranks on GPUs record only the time of issue.
  bool timed;
  std::optional<Mesh> mesh;  // unset if no record has a mesh, or if the meshes differ
  bool ended_by_launcher;    // whether the launcher, and not a failure, ended every rank that has a record
};

}  // namespace aliquot
