#include "engine/matrix_work.h"

#include <algorithm>

namespace aliquot {

MatrixWork::MatrixWork(const Plan& plan, const StepMemory& memory, Communicator& ranks, const Muon& muon,
                       DeviceKind kind)
    : plan_(plan),
      memory_(memory),
      ranks_(ranks),
      muon_(muon),
      kernels_(matrix_kernels(kind)),
      collect_(plan.matrix_groups.size()),
      scatter_(plan.matrix_groups.size()) {
  for (int32_t group = 0; group < static_cast<int32_t>(plan.matrix_groups.size()); ++group) list_transfers(group);
}

/// Of the arena, where the step's one buffer of that role lies on every rank.
int64_t MatrixWork::offset_bytes(Role role, int32_t whose) const {
  const auto& buffers = plan_.schedule.buffers;
  return std::ranges::find_if(buffers,
                              [&](const PlannedBuffer& buffer) { return buffer.role == role && buffer.flat == whose; })
      ->offset_bytes;
}

/// All ranks' parts of what this one owns, and its own of what others do: in the order of ranks, so that two ranks list
/// what passes between them in one order.
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
    const int64_t blended = offset_bytes(Role::kBlended, matrix.flat);
    const int64_t whole = offset_bytes(Role::kMatrices, group) + matrix.offset_bytes;
    for (const Part& part : parts_of_interest(matrix)) {
      const int64_t in_shard = blended + part.shard_offset * 4, in_whole = whole + part.tensor_offset * 4;
      collect_[group].push_back({part.rank, matrix.owner, in_shard, in_whole, part.count * 4});
      scatter_[group].push_back({matrix.owner, part.rank, in_whole, in_shard, part.count * 4});
    }
  }
  all_bytes_.push_back(bytes);
}

/// Every rank has it, and its owner what it has become.
void MatrixWork::list_copies(int32_t group, const OwnedMatrix& matrix) {
  const int64_t at =
      offset_bytes(Role::kBlended, matrix.flat) + plan_.flats[matrix.flat].layout.tensor_offset(matrix.tensor) * 4;
  for (int32_t r = 0; r < ranks_.rank_count(); ++r) {
    if (r != matrix.owner && (r == ranks_.rank() || matrix.owner == ranks_.rank()))
      scatter_[group].push_back({matrix.owner, r, at, at, matrix.size_bytes()});
  }
}

void MatrixWork::collect(Stream& lane, int32_t group, Label label) { transfer(lane, group, collect_[group], label); }

void MatrixWork::scatter(Stream& lane, int32_t group, Label label) { transfer(lane, group, scatter_[group], label); }

void MatrixWork::transfer(Stream& lane, int32_t group, const std::vector<Transfer>& own, Label label) {
  const SymmetricRange arena{memory_.range(Role::kBlended, plan_.matrix_groups[group].flats.front()).buffer, 0};
  ranks_.transfer(lane, {arena, arena, own, all_bytes_[group]}, label);
}

void MatrixWork::orthogonalize(Stream& lane, int32_t group) {
  const MatrixGroup& what = plan_.matrix_groups[group];
  std::byte* scratch = memory_.address(Role::kIteration, group);
  for (const OwnedMatrix& matrix : what.matrices) {
    if (matrix.owner != ranks_.rank()) continue;
    std::byte* at = what.in_place ? memory_.address(Role::kBlended, matrix.flat) +
                                        plan_.flats[matrix.flat].layout.tensor_offset(matrix.tensor) * 4
                                  : memory_.address(Role::kMatrices, group) + matrix.offset_bytes;
    kernels_.orthogonalize(lane, {muon_, reinterpret_cast<float*>(at), matrix.shape, scratch});
  }
}

}  // namespace aliquot
