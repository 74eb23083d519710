#pragma once
// Guard addresses: the values of the model's pointers while no scope of their unit is open. Accesses to them fault.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#pragma GCC visibility push(default)
namespace aliquot {

/// An address range that faults on access. Each parameter has a separate part that is longer than the parameter. The
/// address of a fault therefore identifies the parameter and the distance beyond its end. Uses address space but no
/// memory.
class GuardRange {
 public:
  struct Tensor {
    std::string name;
    int64_t size_bytes;
    bool adjoins = false;  // begins where the previous tensor ends
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

/// Installs a handler for SIGSEGV and SIGBUS. For a fault in a guard range, it prints the parameter that was accessed
/// outside of a scope. After every fault, it calls the previous handler. Later calls have no effect. Programs may call
/// it. The library itself calls it only in the checking mode.
void install_fault_names();

}  // namespace aliquot
#pragma GCC visibility pop
