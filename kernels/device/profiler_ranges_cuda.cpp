#include <nvtx3/nvToolsExt.h>

#include "kernels/device/profiler_ranges.h"

namespace aliquot {
namespace {

nvtxDomainHandle_t domain() {
  static const nvtxDomainHandle_t made = nvtxDomainCreateA("aliquot");
  return made;
}

}  // namespace

ProfilerRanges::ProfilerRanges(std::span<const std::string> names) {
  for (const std::string& name : names) registered_.push_back(nvtxDomainRegisterStringA(domain(), name.c_str()));
}

void ProfilerRanges::push(std::size_t name) const noexcept {
  nvtxEventAttributes_t range{};
  range.version = NVTX_VERSION;
  range.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
  range.messageType = NVTX_MESSAGE_TYPE_REGISTERED;
  range.message.registered = static_cast<nvtxStringHandle_t>(registered_[name]);
  (void)nvtxDomainRangePushEx(domain(), &range);
}

void ProfilerRanges::pop() const noexcept { (void)nvtxDomainRangePop(domain()); }

}  // namespace aliquot
