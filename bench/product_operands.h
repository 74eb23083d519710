#pragma once
// The matrix products of a training step of GPT-2 124M, with operands in memory.

#include <cstdint>
#include <string>
#include <vector>

#include "apps/models/layers/layers.h"
#include "bench/huge_array.h"
#include "kernels/formats/dtype.h"
#include "kernels/system/thread_pool.h"

namespace aliquot {

/// Forward, or the gradient of the inputs or of the weights.
enum class ProductPass : uint8_t { kForward, kInputs, kWeights };

/// One product of a step. `count` is the number of times that a step computes it.
struct StepProduct {
  std::string name;  // for example qkv/forward
  int64_t rows, inputs, outputs;
  bool outputs_first;
  ProductPass pass;
  int count;

  /// The number of multiplications and additions.
  int64_t operations() const { return 2 * rows * inputs * outputs; }
};

/// All products of a step with 256 tokens, except those inside attention.
std::vector<StepProduct> step_products();

/// Whether the system has a library of oneDNN with dnnl_sgemm.
bool has_onednn();

/// Sets of operands of a product. Together, they are too large for any cache, so a call with another set reads its
/// operands from memory. They contain zeros. The time is assumed not to depend on values.
class ProductOperands {
 public:
  ProductOperands(const StepProduct& product, DType type);

  int set_count() const { return static_cast<int>(sets_.size()); }
  /// Computes the product with set number `call` modulo set_count().
  void run(int call);
  /// The same with oneDNN, for fp32. has_onednn() must be true.
  void run_onednn(int call);

 private:
  struct Set {
    HugeArray weight, inputs, outputs, gradient;
  };

  Set& set(int call) { return sets_[static_cast<std::size_t>(call) % sets_.size()]; }

  StepProduct product_;
  DType type_;
  std::vector<Set> sets_;
  HugeArray scratch_;
  ThreadPool pool_{1};
};

}  // namespace aliquot
