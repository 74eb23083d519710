#pragma once
// Runs a reference model use by use on two micro-batches, with whole backward passes or with split ones.

#include <gtest/gtest.h>
#include <memory>
#include <string>
#include <vector>

#include "apps/models/backend.h"
#include "apps/models/make_model.h"
#include "engine/run/memory/guard_range.h"
#include "engine/scope.h"
#include "kernels/elementwise/kernels.h"
#include "tests/support/random_values.h"

namespace aliquot::test {

using Bytes = std::vector<std::byte>;

/// Owns a model and all memory that it accesses, in one block of device memory. Equal arguments give equal contents.
class SplitBackwardRun {
 public:
  static constexpr int kMicroBatches = 2;

  /// `recomputes` overwrites kept activations with NaN and recomputes them before each backward.
  SplitBackwardRun(Device& device, Stream& stream, Backend& backend, const ModelShape& shape,
                   const ModelOptions& options, bool recomputes);

  int use_count() const { return static_cast<int>(spec_.uses.size()); }
  bool splits(int use) const { return at(spec_.uses, use).splits_backward; }
  const ActivationSpec& spec() const { return spec_; }

  /// Runs one use. Pointers to tensors that the use must not access lead to guard pages. Scratch is filled with NaN
  /// first. Expects that the use changes no byte except in the memory that it may write.
  void run(UseKind kind, int micro_batch, int use);
  void forward(int micro_batch) {
    for (int use = 0; use < use_count(); ++use) run(UseKind::kForward, micro_batch, use);
  }

  Bytes gradient_of_stream() { return fetch(backward_); }
  /// The gradients of the parameters of the use.
  Bytes gradients(int use) { return fetch(at(units_, at(model_->uses(), use)).gradients); }

 private:
  struct Region {
    int64_t offset = 0, size_bytes = 0;
  };
  struct UnitRegions {
    Region gradients;  // all tensors of the unit, one after the other
    std::vector<Region> values, tensor_gradients;
  };
  struct UseRegions {
    Region output, kept, weight_inputs;
  };

  template <class T>
  static const T& at(const std::vector<T>& all, int index) {
    return all.at(static_cast<size_t>(index));
  }
  Region reserve(int64_t size_bytes);
  void lay_out();
  void fill_tensors(const ModelOptions& options);
  void* address(const Region& region) const { return region.size_bytes == 0 ? nullptr : block_.data() + region.offset; }
  void fill_with_nan(const Region& region);
  Bytes fetch(const Region& region);
  UseMemory memory_of(UseKind kind, int micro_batch, int use) const;
  std::vector<Region> writable(UseKind kind, int micro_batch, int use) const;
  void point(UseKind kind, int use);
  void recompute(const UseMemory& memory, const Region& kept);
  void call(UseKind kind, int use);
  void expect_only(const std::vector<Region>& written, const Bytes& before, const std::string& what);
  void expect_full(const Region& weight_inputs);

  Device& device_;
  Stream& stream_;
  std::unique_ptr<Model> model_;
  ActivationSpec spec_;
  bool recomputes_;
  GuardRange guard_{{{"guard", 1 << 20}}};
  std::vector<UnitRegions> units_;
  std::vector<UseRegions> uses_[kMicroBatches];
  Region scratch_, backward_, checked_;  // checked_ is all memory except scratch
  int64_t block_bytes_ = 0;
  Buffer block_;
  std::vector<int32_t> tokens_[kMicroBatches], targets_[kMicroBatches];
};

}  // namespace aliquot::test
