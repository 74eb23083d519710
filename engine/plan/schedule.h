#pragma once
// A training step as data: what one rank does, in the order it is issued, on which lane, after what.

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/plan/matrix_groups.h"
#include "engine/plan/model_spec.h"
#include "engine/plan/policy.h"
#include "engine/plan/roles.h"
#include "engine/plan/verbs.h"
#include "sharding/topology.h"

#pragma GCC visibility push(default)
namespace aliquot {

using OperationId = int32_t;
using BufferId = int32_t;
inline constexpr BufferId kNoBuffer = -1;

/// What an operation waits for: `operation`, of this step or the one before, on this rank or on all. Waits for an earlier
/// operation of the same lane of this rank are never listed: lanes keep order.
struct Wait {
  OperationId operation;
  bool on_all = false;
  bool of_previous_step = false;

  friend bool operator==(const Wait&, const Wait&) = default;
};

/// One operation. `operand` is an index of what its verb's operand says; 0 for norm.
struct Operation {
  Verb verb;
  Lane lane;
  int32_t operand;
  int32_t micro_batch;
  std::vector<Wait> after;
};

/// A place in the memory of its space, from its first operation to its last. `first` of an operation
/// and `last` bound when it is in use in issue order; a buffer that is always there has 0 and the last operation.
struct PlannedBuffer {
  Role role;
  Category category;
  int32_t flat;  // whose: an index of what its role's owner says; -1: nobody's
  Space space = Space::kArena;
  bool booked = true;  // in the ledger of the rank's device: not what lies on a GPU's host, or in a file
  bool always = false;
  int64_t size_bytes = 0;
  int64_t offset_bytes = 0;
  OperationId first = 0, last = 0;
};

struct Schedule {
  std::vector<Operation> operations = {};
  std::vector<PlannedBuffer> buffers = {};
  std::array<int64_t, kSpaceCount> space_bytes = {};  // of each rank; of the shared range: of all ranks together
  int64_t stream_bytes = 0;  // staged between steps, where initial values are made and tensors are read
  bool view = false;         // gathers are views of the shared range
  bool accumulate_into_shard = false;
  bool reduces_in_place = false;  // a sum replaces the own part of the gradients that it is of
  bool sums_in_levels = false;    // micro-batches are added as leaves of a tree, not one after the other
  int zero_stage = 0;
  int micro_batch_count = 1;

  int64_t bytes(Space space) const { return space_bytes[static_cast<std::size_t>(space)]; }
  int64_t& bytes(Space space) { return space_bytes[static_cast<std::size_t>(space)]; }
};

/// Where the policy checks: empty blocks between the tensors of a flat, and what follows activations at the least.
inline constexpr int64_t kRedZoneBlocks = 1, kRedZoneBytes = 1024;
/// Protection and direct I/O are by the page: where they are, no page holds two buffers.
inline constexpr int64_t kPlacePageBytes = 4096;

/// By use: whether its forward runs again before its backward.
std::vector<bool> recomputed_uses(const ModelSpec& model, const Policy& policy);

/// By operation: the slots that a copy fills, whose lives begin with it, or empties, whose lives end with it.
std::vector<std::vector<BufferId>> copied_slots(const Schedule& schedule);

/// How many sums that were waiting micro-batch `micro_batch` finds its place beside, where sums are kept in levels.
int closed_levels(int32_t micro_batch);

/// What one of `replica_count` replicas of contiguous ranks runs on. Throws UsageError where they do not divide the ranks, or
/// lie differently on nodes.
Topology topology_of_shard_group(const Topology& world, int replica_count);

/// Of the ranks that hold shard `shard`, one of each replica.
Topology topology_of_replicate_group(const Topology& world, int replica_count, int shard);

struct Plan;
/// Whether reduces go between nodes in 8 bits: where there are several; with replicas it is what they exchange, instead.
bool encodes_gradients(const Plan& plan);
bool encodes_exchanges(const Plan& plan);
/// Whether a node has several ranks, which meet before nodes do: else what a rank has of other nodes' codes is all of them.
bool has_several_ranks_per_node(const Plan& plan);

/// Everything a schedule is about, checked and laid out once.
struct Plan {
  ModelSpec model;
  Policy policy;
  Topology topology;  // of one replica, which is as the others; without replicas, of the world
  Topology world;
  std::vector<FlatSpec> flats;
  std::vector<std::vector<int32_t>> flats_of_unit;
  std::vector<MatrixGroup> matrix_groups;
  Schedule schedule;
  std::string choice = {};  // what was chosen to meet a budget, and why; empty: nothing was

  /// Elements of the flat that each rank updates: its shard; at stage 0 the whole.
  int64_t updated_count(int32_t flat) const {
    return flats[flat].layout.shard_count() * (schedule.zero_stage == 0 ? topology.rank_count() : 1);
  }
  /// Of the optimizer, for 256 elements of the flat.
  int64_t state_bytes_per_block(int32_t flat) const {
    return flats[flat].matrices ? policy.matrix_updates->state_bytes_per_block : policy.state_bytes_per_block;
  }

  /// Above every PlannedBuffer::flat: a group has a flat of its own at least.
  std::size_t owner_count() const { return std::max(flats.size(), model.uses.size()); }
};

/// Pure. Throws UsageError for a policy that does not compose, with the sentence a user should read.
Plan plan(const ModelSpec& model, const Policy& policy, const Topology& topology);

/// Forward alone, over the buffers that `training` always has, at the same offsets; gathers have slots of their own in the
/// arena, which nothing else uses meanwhile. A step of it is one pass.
Plan evaluation_of(const Plan& training);

/// The units that the operation is about, in order; none for the norm.
std::vector<UnitId> units_of(const Plan& plan, const Operation& operation);

/// "forward h.0+h.1": the operation and what it is about.
std::string title(const Plan& plan, OperationId operation);

/// Whose a buffer is: the unit that its flat is of, or the first of its use; "all units" where it is nobody's.
std::string_view owner(const Plan& plan, const PlannedBuffer& buffer);

/// One operation a line: number, verb, what, micro-batch, lane, buffers, waits.
std::string text(const Plan& plan);

/// How many copies of a chunk exist at most while a tensor is streamed over ranks: packed by this rank, handed to the exchange,
/// received from all ranks, split by rank, assembled, and the scratch of a PieceAccess.
inline constexpr int64_t kStreamCopies = 6;

/// Bytes in use by category at each operation, in issue order, and their peaks, what is staged between steps included.
struct Account {
  BytesByCategory peak{};       // each category's own
  int64_t peak_bytes = 0;       // of the sum
  int64_t step_peak_bytes = 0;  // of the operations alone
  OperationId peak_operation = 0;
  std::vector<BytesByCategory> at;  // by operation
  int64_t elsewhere_bytes = 0;      // in files, or in the memory of a GPU's host

  bool peaks_between_steps() const { return peak_bytes > step_peak_bytes; }
};
Account account(const Schedule& schedule);
/// Bytes of the buffers that are always there.
int64_t persistent_bytes(const Schedule& schedule);

/// When most is in use: the title of an operation, or "between steps".
std::string peak_moment(const Plan& plan, const Account& account);

/// What the ranks must agree on, line by line: the model, the choices, then text().
std::string description(const Plan& plan);
/// Of description() and every place: what ranks compare at start.
uint64_t hash(const Plan& plan);

}  // namespace aliquot
#pragma GCC visibility pop
