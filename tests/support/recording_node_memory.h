#pragma once
// Node memory that records the mappings it makes.

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "sharding/memory/node_memory.h"

namespace aliquot::test {

struct MadeMapping {
  std::string owner;
  int64_t size_bytes;
};

/// Forwards to another node memory. Appends each mapping to `made`, which must outlive the object.
class RecordingNodeMemory final : public NodeMemory {
 public:
  RecordingNodeMemory(std::unique_ptr<NodeMemory> inner, std::vector<MadeMapping>& made)
      : inner_(std::move(inner)), made_(made) {}

  std::unique_ptr<NodeMapping> map(int64_t size_bytes, std::string_view owner) override {
    auto mapping = inner_->map(size_bytes, owner);
    made_.push_back({std::string(owner), mapping->size_bytes});
    return mapping;
  }
  std::string_view describe() const override { return inner_->describe(); }

 private:
  std::unique_ptr<NodeMemory> inner_;
  std::vector<MadeMapping>& made_;
};

}  // namespace aliquot::test
