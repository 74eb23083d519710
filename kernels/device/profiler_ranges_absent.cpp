#include "kernels/device/profiler_ranges.h"

namespace aliquot {

ProfilerRanges::ProfilerRanges(std::span<const std::string>) {}
void ProfilerRanges::push(std::size_t) const noexcept {}
void ProfilerRanges::pop() const noexcept {}

}  // namespace aliquot
