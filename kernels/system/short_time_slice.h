#pragma once
namespace aliquot {

/// Requests precise timers and a short time slice for the calling thread. Call it on a thread that works rarely, but
/// must then start at once. Linux 6.12 and later schedule this thread before compute threads of the same core. Older
/// kernels ignore the time slice.
void request_short_time_slice() noexcept;

}  // namespace aliquot
