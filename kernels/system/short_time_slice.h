#pragma once
namespace aliquot {

/// For a thread that works rarely but must start at once. Requests precise timers and a short time slice, with which
/// the scheduler runs the thread before compute threads of the same core. Without effect on kernels without this
/// feature.
void request_short_time_slice() noexcept;

}  // namespace aliquot
