#pragma once
// Memory for the activations of a model without an engine. One allocation contains separate output and saved
// activations for each use.

#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <vector>

#include "engine/plan/activations.h"

namespace aliquot {

/// Owns the memory that of() returns. Not thread-safe.
class PlainMemory {
 public:
  explicit PlainMemory(const ActivationSpec& spec) : spec_(spec) {
    int64_t scratch_bytes = 0;
    for (const UseActivations& use : spec.uses) {
      outputs_.push_back(reserve(use.output_bytes));
      kept_.push_back(reserve(use.kept_bytes));
      scratch_bytes = use.scratch_bytes > scratch_bytes ? use.scratch_bytes : scratch_bytes;
    }
    scratch_ = reserve(scratch_bytes);
    backward_ = reserve(spec.backward_bytes);
    memory_.reset(static_cast<std::byte*>(::operator new[](static_cast<std::size_t>(bytes_), kAlignment)));
  }

  int64_t bytes() const { return bytes_; }
  UseMemory of(int use) const {
    return {.use = use,
            .input = use > 0 ? memory_.get() + outputs_[static_cast<std::size_t>(use) - 1] : nullptr,
            .output = memory_.get() + outputs_[static_cast<std::size_t>(use)],
            .kept = memory_.get() + kept_[static_cast<std::size_t>(use)],
            .scratch = memory_.get() + scratch_,
            .backward = memory_.get() + backward_};
  }
  /// Like of(), but fills scratch with NaN first, because a use must not depend on the contents of scratch.
  UseMemory with_poisoned_scratch(int use) const {
    std::memset(memory_.get() + scratch_, 0xFF,
                static_cast<std::size_t>(spec_.uses[static_cast<std::size_t>(use)].scratch_bytes));
    return of(use);
  }
  const ActivationSpec& spec() const { return spec_; }

 private:
  static constexpr std::align_val_t kAlignment{64};
  struct Free {
    void operator()(std::byte* memory) const { ::operator delete[](memory, kAlignment); }
  };
  int64_t reserve(int64_t bytes) {
    const int64_t at = bytes_;
    bytes_ += (bytes + 63) / 64 * 64;
    return at;
  }

  ActivationSpec spec_;
  int64_t bytes_ = 0, scratch_ = 0, backward_ = 0;
  std::vector<int64_t> outputs_, kept_;
  std::unique_ptr<std::byte[], Free> memory_;
};

}  // namespace aliquot
