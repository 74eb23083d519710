#include "engine/run/memory/host_view.h"

#include "kernels/elementwise/kernels.h"

namespace aliquot {

HostView::HostView(Device& device, const OffloadStores& offload_stores)
    : device_(device), offload_stores_(offload_stores), stream_(device.make_stream(Lane::kCompute)) {}
HostView::~HostView() = default;

bool HostView::is_host_addressable(const std::byte* at) const {
  if (const OffloadStore* home = offload_stores_.find_store_of(at)) return home->is_host_addressable();
  return device_.kind() == DeviceKind::kHost;
}

void HostView::fetch(void* to, const std::byte* from, int64_t size_bytes) const {
  if (const OffloadStore* home = offload_stores_.find_store_of(from)) return home->fetch(to, from, size_bytes);
  device_.kernels().copy(*stream_, to, from, size_bytes);
  stream_->synchronize();
}

void HostView::store(std::byte* to, const void* from, int64_t size_bytes) const {
  if (const OffloadStore* home = offload_stores_.find_store_of(to)) return home->store(to, from, size_bytes);
  device_.kernels().copy(*stream_, to, from, size_bytes);
  stream_->synchronize();
}

void HostView::clear(std::byte* at, int64_t size_bytes) const {
  if (const OffloadStore* home = offload_stores_.find_store_of(at)) return home->clear(at, size_bytes);
  device_.kernels().fill(*stream_, at, DType::kUInt8, 0.0f, size_bytes);
  stream_->synchronize();
}

}  // namespace aliquot
