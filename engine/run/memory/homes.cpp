#include "engine/run/memory/homes.h"

#include <algorithm>
#include <cstring>
#include <fmt/format.h>

#include "kernels/elementwise/kernels.h"
#include "kernels/system/error.h"
#include "sharding/comm/all_or_none.h"

namespace aliquot {
namespace {

class HostHome final : public Home {
 public:
  HostHome(Device& device, int64_t size_bytes, std::string_view owner)
      : kernels_(device.kernels()),
        // The host's own ledger counts it as held, and what is in it as planned.
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
  bool reachable() const override { return true; }
  bool starts_cleared() const override { return false; }
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

std::unique_ptr<Home> make(Offload to, int64_t size_bytes, Device& device, const std::string& directory,
                           const char* what) {
  if (size_bytes == 0) return nullptr;
  if (to == Offload::kHost) return make_host_home(device, size_bytes, fmt::format("offloaded {}", what));
  if (directory.empty()) throw UsageError(fmt::format("offloading {} to disk needs a directory", what));
  if (device.kind() != DeviceKind::kHost) {
    throw UnavailableError(
        fmt::format("offloading {} from a GPU to disk is not built yet; offload to the host's memory", what));
  }
  return make_disk_home(FileSystem::system(), directory, size_bytes);
}

}  // namespace

std::unique_ptr<Home> make_host_home(Device& device, int64_t size_bytes, std::string_view owner) {
  return std::make_unique<HostHome>(device, size_bytes, owner);
}

Homes::Homes(const Plan& plan, World& world, const OffloadDirectories& directories) {
  const auto bytes = [&](Space space) { return plan.schedule.bytes(space); };
  if (bytes(Space::kStateHome) + bytes(Space::kParametersHome) == 0) return;
  all_or_none(world.communicator(), [&] {
    const auto& [state, parameters] = directories;
    Device& device = world.device();
    homes_[0] = make(plan.policy.offload_state, bytes(Space::kStateHome), device, state, "optimizer state");
    homes_[1] = make(plan.policy.offload_parameters, bytes(Space::kParametersHome), device, parameters, "parameters");
  });
}

Home* Homes::of(Space space) const { return homes_[space == Space::kStateHome ? 0 : 1].get(); }

Home* Homes::holding(const std::byte* address) const {
  for (const auto& home : homes_) {
    if (home && home->holds(address)) return home.get();
  }
  return nullptr;
}

}  // namespace aliquot
