#include "engine/host_view.h"

#include "kernels/kernels.h"

namespace aliquot {

HostView::HostView(Device& device) : device_(device), stream_(device.make_stream(Lane::kCompute)) {}
HostView::~HostView() = default;

void HostView::fetch(void* to, const std::byte* from, int64_t size_bytes) const {
  device_.kernels().copy(*stream_, to, from, size_bytes);
  stream_->synchronize();
}

void HostView::store(std::byte* to, const void* from, int64_t size_bytes) const {
  device_.kernels().copy(*stream_, to, from, size_bytes);
  stream_->synchronize();
}

void HostView::clear(std::byte* at, int64_t size_bytes) const {
  device_.kernels().fill(*stream_, at, DType::kUInt8, 0.0f, size_bytes);
  stream_->synchronize();
}

}  // namespace aliquot
