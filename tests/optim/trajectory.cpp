// Prints ten steps of every rule, which tests/optim/compare_torch.py reads. A line has a name (start, gradient or a
// rule), the step, and the values of a 48 x 16 matrix.

#include <cstdio>
#include <string>

#include "optim/muon/muon.h"
#include "optim/muon/orthogonalize.h"
#include "tests/optim/shard.h"

namespace {

using namespace aliquot;

constexpr MatrixShape kShape{48, 16};
constexpr int64_t kCount = 48 * 16;
constexpr int kSteps = 10;

void print(const std::string& name, int step, const std::vector<float>& values) {
  std::printf("%s %d", name.c_str(), step);
  for (const float value : values) std::printf(" %.9g", double{value});
  std::printf("\n");
}

std::vector<Segment> whole_matrix() { return {{.offset = 0, .count = kCount, .global_offset = 0, .parameter = 0}}; }

std::vector<float> gradient_of(int step) {
  Noise noise{500 + static_cast<uint64_t>(step)};
  std::vector<float> gradient(kCount);
  for (float& value : gradient) value = noise.next();
  return gradient;
}

void print_steps(const std::string& name, const Optimizer& optimizer) {
  Shard shard(whole_matrix(), kCount, MasterForm::kWhole, DType::kFloat32);
  shard.set_moment_format(optimizer);
  for (int step = 1; step <= kSteps; ++step) {
    shard.gradient = gradient_of(step);
    shard.args.gradient = shard.gradient.data();
    update_range(best_isa(), shard.args, Shard::step_of(optimizer, step, 1.0f), 0, kCount);
    print(name, step, shard.whole);
  }
}

void print_muon_steps(const std::string& name, DType products) {
  const Muon muon{.lr = 0.02f, .products = products};
  Shard blend(whole_matrix(), kCount, MasterForm::kWhole, DType::kFloat32);
  Shard shard(whole_matrix(), kCount, MasterForm::kWhole, DType::kFloat32);
  ThreadPool pool(1);
  std::vector<double> scratch(static_cast<size_t>(orthogonalize_scratch_bytes(kShape)) / sizeof(double));
  for (int step = 1; step <= kSteps; ++step) {
    blend.gradient = gradient_of(step);
    blend.args.gradient = blend.gradient.data();
    update_range(best_isa(), blend.args, {.rule = muon_blend_rule(muon)}, 0, kCount);
    shard.gradient = blend.whole;
    orthogonalize_on_host({muon, shard.gradient.data(), kShape, reinterpret_cast<std::byte*>(scratch.data())}, pool);
    shard.args.gradient = shard.gradient.data();
    update_range(best_isa(), shard.args, {.rule = muon_apply_rule(muon, decimal(muon.rest.lr))}, 0, kCount);
    print(name, step, shard.whole);
  }
}

}  // namespace

int main() {
  print("start", 0, Shard(whole_matrix(), kCount, MasterForm::kWhole, DType::kFloat32).whole);
  for (int step = 1; step <= kSteps; ++step) print("gradient", step, gradient_of(step));
  print_steps("adamw", AdamW{.lr = 0.01f, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .weight_decay = 0.1f});
  print_steps("adam", Adam{.lr = 0.01f, .beta1 = 0.8f, .beta2 = 0.99f, .eps = 1e-6f, .weight_decay = 0.05f});
  print_steps("sgd", Sgd{.lr = 0.1f, .momentum = 0.0f, .weight_decay = 0.01f});
  print_steps("sgd-momentum", Sgd{.lr = 0.1f, .momentum = 0.9f, .dampening = 0.2f, .weight_decay = 0.01f});
  print_steps("sgd-nesterov", Sgd{.lr = 0.1f, .momentum = 0.9f, .weight_decay = 0.01f, .nesterov = true});
  print_steps("lion", Lion{.lr = 0.01f, .beta1 = 0.9f, .beta2 = 0.99f, .weight_decay = 0.1f});
  print_steps("adamw8bit", AdamW8bit{.lr = 0.01f, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .weight_decay = 0.1f});
  print_muon_steps("muon", DType::kFloat32);
  print_muon_steps("muon-bf16", DType::kBFloat16);
  return 0;
}
