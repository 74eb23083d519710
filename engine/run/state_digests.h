#pragma once
// Digests of the parameters and optimizer state of this rank (Policy::check_state).

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/run/memory/host_view.h"
#include "engine/run/memory/step_memory.h"
#include "engine/run/mesh_groups.h"
#include "optim/update/state_digests.h"

namespace aliquot {

class Updater;

/// Gives updates the digests that they compare and compute. Compares the digests of other parameters in kCompareState,
/// and those of the whole state between steps. Every difference throws FaultError, with rank, node, unit and block: on
/// hosts in the enqueued work, on GPUs in throw_if_found(). Used from the rank's own thread. Everything passed must
/// outlive it.
class StateDigests {
 public:
  StateDigests(const Plan& plan, const MeshGroups& groups, const StepMemory& memory, const HostView& view);
  StateDigests(const StateDigests&) = delete;
  StateDigests& operator=(const StateDigests&) = delete;

  /// Returns the digests for an update of the flat buffer, or null without Policy::check_state. Call during the
  /// operation that updates. For matrices, muon_momentum() is for the operation that changes the momentum.
  const StateCheck* update(int32_t flat) const;
  const StateCheck* muon_momentum(int32_t flat) const;
  /// Enqueues the work of kCompareState.
  void compare(Stream& lane, UnitId unit, int64_t step);

  /// Call if the state may change outside of updates. The next begin_step() then computes all digests.
  void expect_changes() { recorded_ = false; }
  /// Call before the first operation of a step. If changes are expected, all streams must be idle.
  void begin_step(const Updater& updater);
  /// Compares the whole state between steps, while all streams are idle. Does nothing if changes are expected.
  void compare_all(const Updater& updater, int64_t step) const;
  /// Whether kernels of this GPU have found a difference so far. False on hosts.
  bool has_found() const;
  /// Throws FaultError if kernels of this GPU have found a difference. All streams must be idle.
  void throw_if_found() const;
  /// Returns the time that updates and kCompareState spent on digests since the last call, summed over threads. 0 on
  /// GPUs.
  double drain_seconds() { return static_cast<double>(nanoseconds_.exchange(0)) * 1e-9; }

 private:
  /// The elements of a flat buffer that this rank updates, or the others that it stores.
  struct Part {
    int32_t flat = -1;
    bool is_updated = false;    // whether this rank updates the elements
    int64_t first_element = 0;  // index in the flat buffer of element 0 of `args`
    std::vector<Segment> segments;
    UpdateArgs args;
    StateCheck check, momentum_check;
  };
  void set_ranks(Part& part, int first_rank, int last_rank, int skipped_rank) const;
  void set_digests(Part& part);
  void set_device_tables();
  FoundDifference* found(std::size_t part) const { return found_.as<FoundDifference>() + part; }
  Master parameters_only(std::byte* at) const;
  UpdateArgs args_between_steps(const Part& part, const Updater& updater) const;
  template <typename Body>
  void for_parts(const Updater& updater, const Body& body) const;
  template <typename Body>
  void for_chunks(const Updater& updater, const Body& body) const;
  [[noreturn]] void report(const Part& part, const StateDifference& difference, int64_t step) const;

  const Plan& plan_;
  const StepMemory& memory_;
  const HostView& view_;
  bool recorded_ = false;
  int world_rank_, rank_, tensor_;
  std::string node_;
  std::vector<Part> updated_, others_;  // one for each flat buffer; empty without Policy::check_state
  // Only on GPUs. found_ has a FoundDifference for each part of updated_, and then for each part of others_. stream_ is
  // for work between steps.
  Buffer found_;
  std::unique_ptr<Stream> stream_;
  std::atomic<int64_t> nanoseconds_ = 0;
};

}  // namespace aliquot
