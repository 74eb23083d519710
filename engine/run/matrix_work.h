#pragma once
// Work on the matrix groups of Muon: gather to the owners, orthogonalization, and scatter.

#include <memory>
#include <vector>

#include "engine/run/memory/step_memory.h"
#include "kernels/device/device.h"
#include "optim/muon/orthogonalize.h"
#include "sharding/comm/communicator.h"

namespace aliquot {

/// Enqueues the work of a plan's matrix groups. Allocates only in the constructor. Used from the rank's own thread.
/// Everything passed must outlive it.
class MatrixWork {
 public:
  MatrixWork(const Plan& plan, const StepMemory& memory, Communicator& ranks, const Muon& muon, Device& device);

  void gather_matrices(Stream& lane, int32_t group, Label label);
  void orthogonalize(Stream& lane, int32_t group);
  void scatter_matrices(Stream& lane, int32_t group, Label label);

 private:
  /// The part of a matrix in the shard of one rank.
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
  std::unique_ptr<Orthogonalizer> orthogonalizer_;
  /// Offsets in the arena: of kMuonDirections for each flat buffer, and of kOwnedMatrices for each matrix group.
  std::vector<int64_t> direction_offsets_, matrices_offsets_;
  /// For each matrix group, the transfers in which this rank takes part.
  std::vector<std::vector<Transfer>> collect_, scatter_;
  std::vector<int64_t> all_bytes_;  // for each matrix group, the bytes that all ranks transfer
};

}  // namespace aliquot
