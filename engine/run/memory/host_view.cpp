#include "engine/run/memory/host_view.h"

#include "kernels/elementwise/kernels.h"

namespace aliquot {

HostView::HostView(Device& device, const Homes& homes)
    : device_(device), homes_(homes), stream_(device.make_stream(Lane::kCompute)) {}
HostView::~HostView() = default;

bool HostView::direct(const std::byte* at) const {
  if (const Home* home = homes_.holding(at)) return home->reachable();
  return device_.kind() == DeviceKind::kHost;
}

void HostView::fetch(void* to, const std::byte* from, int64_t size_bytes) const {
  if (const Home* home = homes_.holding(from)) return home->fetch(to, from, size_bytes);
  device_.kernels().copy(*stream_, to, from, size_bytes);
  stream_->synchronize();
}

void HostView::store(std::byte* to, const void* from, int64_t size_bytes) const {
  if (const Home* home = homes_.holding(to)) return home->store(to, from, size_bytes);
  device_.kernels().copy(*stream_, to, from, size_bytes);
  stream_->synchronize();
}

void HostView::clear(std::byte* at, int64_t size_bytes) const {
  if (const Home* home = homes_.holding(at)) return home->clear(at, size_bytes);
  device_.kernels().fill(*stream_, at, DType::kUInt8, 0.0f, size_bytes);
  stream_->synchronize();
}

}  // namespace aliquot
