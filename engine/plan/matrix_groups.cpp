#include "engine/plan/matrix_groups.h"

#include <algorithm>

#include "engine/plan/writer/writer.h"
#include "optim/muon/orthogonalize.h"

namespace aliquot {
namespace {

constexpr int64_t kAlignBytes = 256;

/// A group is balanced if the busiest owner has at most this multiple of the average work.
constexpr double kMaxImbalance = 1.1;
constexpr std::size_t kManyMatricesPerOwner = 8;

class MatrixGrouper {
 public:
  explicit MatrixGrouper(const Plan& plan)
      : plan_(plan),
        flats_(plan.flats),
        rank_count_(plan.topology.rank_count()),
        iterations_(plan.policy.matrix_updates->iterations),
        in_place_(plan.policy.zero_stage == 0 || rank_count_ == 1) {}

  std::vector<MatrixGroup> group() {
    for (int32_t f = 0; f < static_cast<int32_t>(flats_.size()); ++f) {
      if (!flats_[f].matrices || !plan_.is_here(f)) continue;
      add(f);
      if (is_last_of_unit(f) && is_balanced()) close();
    }
    if (!current_.flats.empty()) close();
    return std::move(groups_);
  }

 private:
  /// Whether no later flat buffer of the unit has matrices. All matrices of a unit must be in one group.
  bool is_last_of_unit(int32_t flat) const {
    const auto& of_unit = plan_.flats_of_unit[flats_[flat].unit];
    return std::ranges::none_of(of_unit, [&](int32_t f) { return f > flat && flats_[f].matrices; });
  }

  void add(int32_t flat) {
    const auto& tensors = flats_[flat].layout.tensors();
    current_.flats.push_back(flat);
    for (int32_t t = 0; t < static_cast<int32_t>(tensors.size()); ++t) {
      const MatrixShape shape{tensors[t].shape[0], tensors[t].shape[1]};
      current_.matrices.push_back({.flat = flat, .tensor = t, .owner = 0, .shape = shape});
      current_.scratch_bytes = std::max(current_.scratch_bytes, orthogonalize_scratch_bytes(shape));
    }
  }

  /// Whether the owners in the current group have about equal work (kMaxImbalance). A check takes long,
  /// because it assigns all owners. So after a check, returns false until the number of matrices has grown by 10 %.
  bool is_balanced() {
    if (current_.matrices.size() < static_cast<std::size_t>(rank_count_) ||
        current_.matrices.size() < next_check_count_)
      return false;
    next_check_count_ = current_.matrices.size() + current_.matrices.size() / 10;
    assign();
    double all = 0, largest = 0;
    for (const OwnedMatrix& matrix : current_.matrices) {
      const double work = orthogonalize_multiply_adds(matrix.shape, iterations_);
      all += work, largest = std::max(largest, work);
    }
    if (current_.work * rank_count_ <= all * kMaxImbalance) return true;
    // In a group with one very large matrix, owners may never have equal work. Such a group counts as balanced if it
    // has many matrices, and the busiest owner has little more work than the largest matrix causes.
    const bool many = current_.matrices.size() >= kManyMatricesPerOwner * static_cast<std::size_t>(rank_count_);
    return many && current_.work <= largest * kMaxImbalance;
  }

  void assign() {
    std::vector<MatrixShape> shapes;
    for (const OwnedMatrix& matrix : current_.matrices) shapes.push_back(matrix.shape);
    const auto owners = assign_matrices(shapes, rank_count_, iterations_);
    std::vector<double> work(static_cast<std::size_t>(rank_count_));
    for (std::size_t m = 0; m < shapes.size(); ++m) {
      current_.matrices[m].owner = owners[m];
      work[static_cast<std::size_t>(owners[m])] += orthogonalize_multiply_adds(shapes[m], iterations_);
    }
    current_.work = std::ranges::max(work);
  }

  void close() {
    assign();
    current_.in_place = in_place_;
    std::vector<int64_t> held(static_cast<std::size_t>(rank_count_));
    for (OwnedMatrix& matrix : current_.matrices) {
      if (in_place_) break;
      int64_t& of_owner = held[static_cast<std::size_t>(matrix.owner)];
      matrix.offset_bytes = of_owner;
      of_owner += (matrix.size_bytes() + kAlignBytes - 1) / kAlignBytes * kAlignBytes;
    }
    current_.held_bytes = std::ranges::max(held);
    groups_.push_back(std::move(current_));
    current_ = {};
    next_check_count_ = 0;
  }

  const Plan& plan_;
  const std::vector<FlatSpec>& flats_;
  int rank_count_, iterations_;
  bool in_place_;
  MatrixGroup current_;
  std::size_t next_check_count_ = 0;
  std::vector<MatrixGroup> groups_;
};

}  // namespace

std::vector<MatrixGroup> matrix_groups(const Plan& plan) {
  if (!plan.policy.matrix_updates) return {};
  return MatrixGrouper(plan).group();
}

}  // namespace aliquot
