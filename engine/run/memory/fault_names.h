#pragma once
// What a fault at an address means, composed where nothing may be allocated: in a signal handler.

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace aliquot {

/// One line for standard error. Everything is async-signal-safe; what does not fit is cut off.
class FaultLine {
 public:
  void add(std::string_view text) noexcept;
  void add(int64_t number) noexcept;
  /// In one write, so that the lines of two threads do not mix.
  void write() const noexcept;

 private:
  std::array<char, 1024> text_;
  std::size_t length_ = 0;
};

/// Tensors in a stretch of addresses, by where they begin.
class TensorRanges {
 public:
  void add(std::string name, int64_t offset_bytes, int64_t size_bytes);
  int64_t offset_bytes(std::size_t tensor) const { return tensors_[tensor].offset_bytes; }

  /// Adds "NAME was WHAT" for the last tensor that begins at or before the offset, and how many bytes the offset is beyond its
  /// end, if it is. Before all tensors: the first, and how many bytes before its beginning.
  void describe(FaultLine& line, int64_t offset_bytes, std::string_view what) const noexcept;

 private:
  struct Tensor {
    std::string name;
    int64_t offset_bytes, size_bytes;
  };
  std::vector<Tensor> tensors_;
};

/// While it exists, the handler of install_fault_names() asks it about every fault. `owner` must outlive it.
class FaultExplainer {
 public:
  /// Returns false, and leaves `line` alone, for an address that is not the owner's. Called in a signal handler, on any thread.
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
