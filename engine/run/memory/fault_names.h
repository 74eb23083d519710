#pragma once
// Messages about memory faults. A signal handler composes them without allocation.

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace aliquot {

/// A line of text for standard error. All functions are async-signal-safe. Text beyond the maximum length is dropped.
class FaultLine {
 public:
  void add(std::string_view text) noexcept;
  void add(int64_t number) noexcept;
  /// Writes the line with a single system call, so that lines of several threads are not interleaved.
  void write() const noexcept;

 private:
  std::array<char, 1024> text_;
  std::size_t length_ = 0;
};

/// The tensors of an address range. Call add() in the order of offsets.
class TensorRanges {
 public:
  void add(std::string name, int64_t offset_bytes, int64_t size_bytes);
  int64_t offset_bytes(std::size_t tensor) const { return tensors_[tensor].offset_bytes; }

  /// Adds "NAME was WHAT" to the line, for the last tensor that begins at or before the offset. If the offset is beyond
  /// the tensor's end, also adds the distance. An offset before all tensors is described relative to the first tensor.
  void describe(FaultLine& line, int64_t offset_bytes, std::string_view what) const noexcept;

 private:
  struct Tensor {
    std::string name;
    int64_t offset_bytes, size_bytes;
  };
  std::vector<Tensor> tensors_;
};

/// While this object exists, the handler of install_fault_names() calls it for every fault. `owner` must outlive it.
class FaultExplainer {
 public:
  /// Returns false, without changing `line`, if the address does not belong to the owner. Called in a signal handler,
  /// on any thread.
  using Explain = bool (*)(const void* owner, const void* address, FaultLine& line) noexcept;

  FaultExplainer(const void* owner, Explain explains);
  ~FaultExplainer();
  FaultExplainer(const FaultExplainer&) = delete;
  FaultExplainer& operator=(const FaultExplainer&) = delete;

  bool explain(const void* address, FaultLine& line) const noexcept { return explain_(owner_, address, line); }

 private:
  const void* owner_;
  Explain explain_;
};

}  // namespace aliquot
