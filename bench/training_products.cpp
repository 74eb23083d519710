#include "bench/training_products.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <vector>

#include "apps/models/layers/layers.h"
#include "apps/models/layers/loss.h"
#include "apps/models/shape.h"
#include "bench/huge_array.h"
#include "kernels/gemm/product.h"

namespace aliquot {
namespace {

/// Arrays large enough for any product of the step. They contain zeros. The time is assumed not to depend on values.
class Arrays {
 public:
  Arrays(DType compute, int sequence)
      : compute_(compute),
        rows_(sequence),
        weight_(array(std::max(shape_.hidden, kLossTileEntries) * shape_.width, compute)),
        gradient_(array(std::max(shape_.hidden, kLossTileEntries) * shape_.width, DType::kFloat32)),
        inputs_(array(rows_ * std::max(shape_.hidden, kLossTileEntries), compute)),
        outputs_(array(rows_ * std::max(shape_.hidden, kLossTileEntries), compute)),
        stream_(array(rows_ * shape_.width, DType::kFloat32)),
        scratch_(array(product_scratch_elements(compute, DType::kFloat32, selected_bf16_product_method()),
                       DType::kFloat32)) {}

  void step() {
    const int64_t width = shape_.width, hidden = shape_.hidden;
    for (int64_t layer = 0; layer < shape_.layers; ++layer) {
      for (const auto& [inputs, outputs] :
           {std::pair{width, 3 * width}, {width, width}, {width, hidden}, {hidden, width}})
        linear(inputs, outputs, false);
    }
    for (int64_t entry = 0; entry < shape_.vocabulary; entry += kLossTileEntries)
      linear(width, std::min(kLossTileEntries, shape_.vocabulary - entry), true);
  }

 private:
  static HugeArray array(int64_t count, DType type) { return HugeArray(count * element_bytes(type)); }
  static float* fp32(HugeArray& array) { return reinterpret_cast<float*>(array.data()); }

  void linear(int64_t inputs, int64_t outputs, bool outputs_first) {
    const Linear l{.weight = {weight_.data(), compute_},
                   .bias = nullptr,
                   .rows = rows_,
                   .inputs = inputs,
                   .outputs = outputs,
                   .outputs_first = outputs_first,
                   .scratch = fp32(scratch_)};
    const Values to = outputs_first ? Values(fp32(gradient_)) : Values(outputs_.data(), compute_);
    linear_forward(pool_, l, {inputs_.data(), compute_}, nullptr, to);
    linear_backward_input(pool_, l, {outputs_.data(), compute_}, {inputs_.data(), compute_});
    linear_backward_weights(pool_, l, {inputs_.data(), compute_}, {outputs_.data(), compute_},
                            {fp32(gradient_), nullptr, false});
  }

  ModelShape shape_ = find_model_preset("gpt2-124m")->shape;
  DType compute_;
  int64_t rows_;
  HugeArray weight_, gradient_, inputs_, outputs_, stream_, scratch_;
  ThreadPool pool_{1};
};

}  // namespace

double seconds_of_products(DType compute, int rank_count, int sequence) {
  std::vector<double> seconds(static_cast<std::size_t>(rank_count));
  std::vector<std::thread> ranks;
  for (double& own : seconds) {
    ranks.emplace_back([&own, compute, sequence] {
      Arrays arrays(compute, sequence);
      arrays.step();  // warm-up: touches pages and loads code
      const auto began = std::chrono::steady_clock::now();
      arrays.step();
      own = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
    });
  }
  for (std::thread& rank : ranks) rank.join();
  return *std::max_element(seconds.begin(), seconds.end());
}

}  // namespace aliquot
