#include "engine/run/memory/offload_stores.h"

#include <algorithm>
#include <cstring>
#include <fmt/format.h>

#include "kernels/elementwise/kernels.h"
#include "kernels/system/error.h"
#include "sharding/comm/run_on_all_or_throw.h"

namespace aliquot {
namespace {

class HostOffloadStore final : public OffloadStore {
 public:
  HostOffloadStore(Device& device, int64_t size_bytes, std::string_view owner)
      : kernels_(device.kernels()),
        // On hosts, the ledger counts the store as allocated memory, and the buffers in it as separate entries.
        buffer_(device.kind() == DeviceKind::kHost ? device.allocate(size_bytes, Category::kArena, owner)
                                                   : device.allocate_host(size_bytes, owner)) {}

  void copy_in(Stream& io, std::byte* slot, int64_t offset, int64_t size_bytes) override {
    kernels_.copy(io, slot, buffer_.data() + offset, size_bytes);
  }
  void copy_out(Stream& io, int64_t offset, const std::byte* slot, int64_t size_bytes) override {
    kernels_.copy(io, buffer_.data() + offset, slot, size_bytes);
  }
  std::byte* base() const override { return buffer_.data(); }
  int64_t size_bytes() const override { return buffer_.size_bytes(); }
  bool is_host_addressable() const override { return true; }
  bool is_zero_initialized() const override { return false; }
  void fetch(void* to, const std::byte* from, int64_t size_bytes) const override {
    std::copy_n(from, size_bytes, static_cast<std::byte*>(to));
  }
  void store(std::byte* to, const void* from, int64_t size_bytes) const override {
    std::copy_n(static_cast<const std::byte*>(from), size_bytes, to);
  }
  void clear(std::byte* at, int64_t size_bytes) const override { std::fill_n(at, size_bytes, std::byte{}); }

 private:
  const Kernels& kernels_;
  Buffer buffer_;
};

std::unique_ptr<OffloadStore> make(Offload to, int64_t size_bytes, Device& device, const std::string& directory,
                                   const char* what, const char* field) {
  if (size_bytes == 0) return nullptr;
  if (to == Offload::kHost) return make_host_offload_store(device, size_bytes, fmt::format("offloaded {}", what));
  if (directory.empty()) {
    throw UsageError(fmt::format("offloading {} to disk needs a directory: set {}", what, field));
  }
  if (device.kind() != DeviceKind::kHost) {
    throw UnavailableError(
        fmt::format("offloading {} from a GPU to disk is not implemented: offload to host memory", what));
  }
  return make_disk_offload_store(FileSystem::system(), directory, size_bytes);
}

}  // namespace

std::unique_ptr<OffloadStore> make_host_offload_store(Device& device, int64_t size_bytes, std::string_view owner) {
  return std::make_unique<HostOffloadStore>(device, size_bytes, owner);
}

OffloadStores::OffloadStores(const Plan& plan, World& world, const OffloadDirectories& directories) {
  const auto bytes = [&](Space space) { return plan.schedule.bytes(space); };
  // Other ranks may offload although this rank does not: all units of its pipeline stage may be frozen.
  if (plan.policy.offload_state == Offload::kNone && plan.policy.offload_parameters == Offload::kNone) return;
  run_on_all_or_throw(world.communicator(), [&] {
    const auto& [state, parameters] = directories;
    Device& device = world.device();
    offload_stores_[0] = make(plan.policy.offload_state, bytes(Space::kOffloadedState), device, state,
                              "optimizer state", "EngineOptions::offload_state_to");
    offload_stores_[1] = make(plan.policy.offload_parameters, bytes(Space::kOffloadedParameters), device, parameters,
                              "parameters", "EngineOptions::offload_parameters_to");
  });
}

OffloadStore* OffloadStores::of(Space space) const {
  return offload_stores_[space == Space::kOffloadedState ? 0 : 1].get();
}

OffloadStore* OffloadStores::find_store_of(const std::byte* address) const {
  for (const auto& home : offload_stores_) {
    if (home && home->holds(address)) return home.get();
  }
  return nullptr;
}

}  // namespace aliquot
