#pragma once
// Where a model's pointers lead when the unit they belong to is not whole.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#pragma GCC visibility push(default)
namespace aliquot {

/// Addresses that fault when they are read or written: a stretch of its own for every parameter, longer than the
/// parameter, so that a fault tells which one was touched, and how far beyond its end. Costs addresses, no memory.
class GuardRange {
 public:
  struct Tensor {
    std::string name;
    int64_t size_bytes;
  };
  /// Throws UnavailableError when the system gives no addresses.
  explicit GuardRange(const std::vector<Tensor>& tensors);
  ~GuardRange();
  GuardRange(const GuardRange&) = delete;
  GuardRange& operator=(const GuardRange&) = delete;

  std::byte* address(std::size_t tensor) const;

 private:
  struct Names;
  std::unique_ptr<Names> names_;
  std::byte* base_ = nullptr;
  int64_t size_bytes_ = 0;
};

/// From the first call on a fault inside a guard range prints which parameter was touched outside a live scope. It, and every
/// other fault, then goes to the handler that was there as if there were none between. For programs: a library sets none.
void install_fault_names();

}  // namespace aliquot
#pragma GCC visibility pop
