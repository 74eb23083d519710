#include "optim/muon/muon.h"

#include <algorithm>
#include <numeric>

namespace aliquot {

bool is_matrix(std::span<const int64_t> shape) { return shape.size() == 2 && shape[0] > 0 && shape[1] > 0; }

StateSpec muon_state(DType moments) { return {"momentum_buffer", moments}; }

Rule muon_blend_rule(const Muon& muon) {
  const auto rest = static_cast<float>(1.0 - decimal(muon.momentum));
  return MuonBlendRule{.momentum = muon.momentum,
                       .of_gradient = rest,
                       .gradient_again = muon.nesterov ? rest : 0.0f,
                       .of_momentum = muon.nesterov ? muon.momentum : 1.0f};
}

double matrix_learning_rate(const Muon& muon, double lr) { return lr * decimal(muon.lr) / decimal(muon.rest.lr); }

Rule muon_apply_rule(const Muon& muon, double rest_lr) {
  const double lr = matrix_learning_rate(muon, rest_lr);
  return MuonApplyRule{static_cast<float>(lr), static_cast<float>(lr * decimal(muon.weight_decay))};
}

double orthogonalize_multiply_adds(const MatrixShape& shape, int iterations) {
  const auto small = static_cast<double>(std::min(shape.rows, shape.columns));
  const auto large = static_cast<double>(std::max(shape.rows, shape.columns));
  return iterations * (2.0 * small * small * large + small * small * small);
}

std::vector<int32_t> assign_matrices(std::span<const MatrixShape> shapes, int owner_count, int iterations) {
  std::vector<double> work;
  for (const MatrixShape& shape : shapes) work.push_back(orthogonalize_multiply_adds(shape, iterations));
  std::vector<size_t> order(shapes.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, [&work](size_t a, size_t b) { return work[a] > work[b]; });
  std::vector<double> load(static_cast<size_t>(owner_count), 0.0);
  std::vector<int32_t> owner(shapes.size());
  for (const size_t matrix : order) {
    const auto least = std::ranges::min_element(load);
    *least += work[matrix];
    owner[matrix] = static_cast<int32_t>(least - load.begin());
  }
  return owner;
}

}  // namespace aliquot
