#pragma once
// Addresses that fault. The model's pointers hold them while their unit is not gathered.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#pragma GCC visibility push(default)
namespace aliquot {

/// An address range that faults on access. Each parameter has its own part, longer than the parameter, so that the
/// address of a fault identifies the parameter and the distance beyond its end. Uses address space but no memory.
class GuardRange {
 public:
  struct Tensor {
    std::string name;
    int64_t size_bytes;
  };
  /// Throws UnavailableError if the system refuses the address space.
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

/// Installs a handler for SIGSEGV and SIGBUS. For a fault inside a guard range, it prints the parameter that was
/// accessed outside of a scope. It then calls the previous handler, for every fault. Later calls have no effect. For
/// programs; the library installs no handler, except in the checking mode.
void install_fault_names();

}  // namespace aliquot
#pragma GCC visibility pop
