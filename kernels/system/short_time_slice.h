#pragma once
namespace aliquot {

/// For a thread that works rarely but must start at once. Requests precise timers and a short time slice for the
/// calling thread. Linux 6.12 and later then schedule it before compute threads of the same core. Older kernels ignore
/// the time slice.
void request_short_time_slice() noexcept;

}  // namespace aliquot
