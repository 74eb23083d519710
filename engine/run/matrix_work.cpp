#include "engine/run/matrix_work.h"

#include <algorithm>

namespace aliquot {

constexpr int64_t kElementBytes = sizeof(float);

MatrixWork::MatrixWork(const Plan& plan, const StepMemory& memory, Communicator& ranks, const Muon& muon,
                       Device& device)
    : plan_(plan),
      memory_(memory),
      ranks_(ranks),
      muon_(muon),
      orthogonalizer_(make_orthogonalizer(device, muon.products)),
      direction_offsets_(plan.flats.size()),
      matrices_offsets_(plan.matrix_groups.size()),
      collect_(plan.matrix_groups.size()),
      scatter_(plan.matrix_groups.size()) {
  // A flat buffer has at most one buffer of kMuonDirections, and a matrix group at most one of kOwnedMatrices.
  for (const PlannedBuffer& buffer : plan.schedule.buffers) {
    if (buffer.role == Role::kMuonDirections) direction_offsets_[buffer.flat] = buffer.offset_bytes;
    if (buffer.role == Role::kOwnedMatrices) matrices_offsets_[buffer.flat] = buffer.offset_bytes;
  }
  for (int32_t group = 0; group < static_cast<int32_t>(plan.matrix_groups.size()); ++group) list_transfers(group);
}

/// Returns the offset of a matrix in its full flat buffer.
int64_t MatrixWork::matrix_offset_bytes(const OwnedMatrix& matrix) const {
  return plan_.flats[matrix.flat].layout.tensor_offset(matrix.tensor) * kElementBytes;
}

/// Returns the parts of a matrix that this rank sends or receives: all parts if it owns the matrix, otherwise the parts
/// in its shard. They are in the order of elements, so that two ranks list the transfers between them in the same
/// order.
std::vector<MatrixWork::Part> MatrixWork::parts_of_interest(const OwnedMatrix& matrix) const {
  const FlatLayout& layout = plan_.flats[matrix.flat].layout;
  const int64_t count = matrix.shape.rows * matrix.shape.columns;
  std::vector<Part> parts;
  for (int64_t element = 0; element < count;) {
    const Place place = layout.place(matrix.tensor, element);
    const int64_t here = std::min(count - element, layout.shard_count() - place.shard_offset);
    if (matrix.owner == ranks_.rank() || place.rank == ranks_.rank())
      parts.push_back({place.rank, place.shard_offset, element, here});
    element += here;
  }
  return parts;
}

void MatrixWork::list_transfers(int32_t group) {
  const MatrixGroup& what = plan_.matrix_groups[group];
  int64_t bytes = 0;
  for (const OwnedMatrix& matrix : what.matrices) {
    bytes += matrix.size_bytes() * (what.in_place ? ranks_.rank_count() - 1 : 1);
    if (what.in_place) {
      list_copies(group, matrix);
      continue;
    }
    for (const Part& part : parts_of_interest(matrix)) {
      const int64_t in_shard = direction_offsets_[matrix.flat] + part.shard_offset * kElementBytes;
      const int64_t in_whole = matrices_offsets_[group] + matrix.offset_bytes + part.tensor_offset * kElementBytes;
      collect_[group].push_back({part.rank, matrix.owner, in_shard, in_whole, part.count * kElementBytes});
      scatter_[group].push_back({matrix.owner, part.rank, in_whole, in_shard, part.count * kElementBytes});
    }
  }
  all_bytes_.push_back(bytes);
}

/// Lists the transfers from the owner of an in-place matrix to all other ranks.
void MatrixWork::list_copies(int32_t group, const OwnedMatrix& matrix) {
  const int64_t at = direction_offsets_[matrix.flat] + matrix_offset_bytes(matrix);
  for (int32_t r = 0; r < ranks_.rank_count(); ++r) {
    if (r != matrix.owner && (r == ranks_.rank() || matrix.owner == ranks_.rank()))
      scatter_[group].push_back({matrix.owner, r, at, at, matrix.size_bytes()});
  }
}

void MatrixWork::gather_matrices(Stream& lane, int32_t group, Label label) { transfer(lane, group, false, label); }

void MatrixWork::scatter_matrices(Stream& lane, int32_t group, Label label) { transfer(lane, group, true, label); }

void MatrixWork::transfer(Stream& lane, int32_t group, bool back, Label label) {
  const std::vector<Transfer>& own = back ? scatter_[group] : collect_[group];
  const MatrixGroup& what = plan_.matrix_groups[group];
  const AccessMode directions = !back           ? AccessMode::kReads
                                : what.in_place ? AccessMode::kReadsAndWrites
                                                : AccessMode::kWrites;
  for (const int32_t flat : what.flats) memory_.declare_access(Role::kMuonDirections, flat, directions);
  memory_.declare_access(Role::kOwnedMatrices, group, back ? AccessMode::kReads : AccessMode::kWrites);
  const SymmetricRange arena{memory_.range(Role::kMuonDirections, what.flats.front(), directions).buffer, 0};
  ranks_.transfer(lane, {arena, arena, own, all_bytes_[group], back}, label);
}

void MatrixWork::orthogonalize(Stream& lane, int32_t group) {
  const MatrixGroup& what = plan_.matrix_groups[group];
  std::byte* scratch = memory_.address(Role::kOrthogonalizeScratch, group, AccessMode::kWrites);
  // Every rank declares access to all matrices, including those that it does not own.
  if (what.in_place) {
    for (const int32_t flat : what.flats)
      memory_.declare_access(Role::kMuonDirections, flat, AccessMode::kReadsAndWrites);
  }
  std::byte* matrices = memory_.address(Role::kOwnedMatrices, group, AccessMode::kReadsAndWrites);
  for (const OwnedMatrix& matrix : what.matrices) {
    if (matrix.owner != ranks_.rank()) continue;
    std::byte* at = what.in_place ? memory_.peek(Role::kMuonDirections, matrix.flat) + matrix_offset_bytes(matrix)
                                  : matrices + matrix.offset_bytes;
    orthogonalizer_->orthogonalize(lane, {muon_, reinterpret_cast<float*>(at), matrix.shape, scratch});
  }
}

}  // namespace aliquot
