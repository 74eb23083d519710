#pragma once
// A thread that seldom works and must do so at once.

namespace aliquot {

/// Asks the system to wake the calling thread on time and to let it work for a short while before others that compute on the
/// same core, rather than for long after them. Where the system knows no such thing, nothing changes.
void request_short_time_slice() noexcept;

}  // namespace aliquot
