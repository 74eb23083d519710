#pragma once
// Whole matrices on their way to their owners, at work, and on the way back.

#include <vector>

#include "engine/run/memory/step_memory.h"
#include "kernels/device/device.h"
#include "optim/muon/orthogonalize.h"
#include "sharding/comm/communicator.h"

namespace aliquot {

/// What the operations of a plan's matrix groups do. Enqueues on the lane it is given and allocates nothing. Used from the
/// rank's own thread; everything given must outlive it.
class MatrixWork {
 public:
  MatrixWork(const Plan& plan, const StepMemory& memory, Communicator& ranks, const Muon& muon, DeviceKind kind);

  void gather_matrices(Stream& lane, int32_t group, Label label);
  void orthogonalize(Stream& lane, int32_t group);
  void scatter_matrices(Stream& lane, int32_t group, Label label);

 private:
  /// The parts of one tensor of a flat, as ranks hold them.
  struct Part {
    int32_t rank;
    int64_t shard_offset, tensor_offset, count;
  };
  std::vector<Part> parts_of_interest(const OwnedMatrix& matrix) const;
  void list_transfers(int32_t group);
  void list_copies(int32_t group, const OwnedMatrix& matrix);
  int64_t matrix_offset_bytes(const OwnedMatrix& matrix) const;
  void transfer(Stream& lane, int32_t group, bool back, Label label);

  const Plan& plan_;
  const StepMemory& memory_;
  Communicator& ranks_;
  Muon muon_;
  const MatrixKernels& kernels_;
  std::vector<int64_t> direction_offsets_, matrices_offsets_;  // in the arena, of every rank: by flat, by group
  std::vector<std::vector<Transfer>> collect_, scatter_;       // by group: what this rank sends or receives
  std::vector<int64_t> all_bytes_;                             // by group
};

}  // namespace aliquot
