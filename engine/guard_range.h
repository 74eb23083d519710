#pragma once
// Where a model's pointers lead when the unit they belong to is not whole.

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#pragma GCC visibility push(default)
namespace aliquot {

/// Addresses that fault when they are read or written: a stretch of its own for every parameter, as long as the
/// parameter, so that a fault tells which one was touched. Costs addresses, no memory.
class GuardRange {
 public:
  struct Tensor {
    std::string name;
    int64_t size_bytes;
  };
  /// Throws UnavailableError when the system gives no addresses.
  explicit GuardRange(std::vector<Tensor> tensors);
  ~GuardRange();
  GuardRange(const GuardRange&) = delete;
  GuardRange& operator=(const GuardRange&) = delete;

  std::byte* address(std::size_t tensor) const { return base_ + offsets_[tensor]; }

 private:
  std::vector<Tensor> tensors_;
  std::vector<int64_t> offsets_;
  std::byte* base_ = nullptr;
  int64_t size_bytes_ = 0;

  friend void install_fault_names();
  const char* name_at(const void* address) const noexcept;
};

/// From the first call on a fault inside a guard range prints which parameter was touched outside a live scope. It, and every
/// other fault, then goes to the handler that was there as if there were none between. For programs: a library sets none.
void install_fault_names();

}  // namespace aliquot
#pragma GCC visibility pop
