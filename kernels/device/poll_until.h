#pragma once
// Waits for a condition that can only be polled.

#include <chrono>
#include <thread>

namespace aliquot {

/// Polls until `finished()` returns true. Does not sleep for the first 200 us, so that short waits end promptly. After
/// that, sleeps for 50 us between polls. Calls `between_polls` after each poll; `between_polls` may throw to end the
/// wait.
template <typename Finished, typename BetweenPolls>
void poll_until(Finished&& finished, BetweenPolls&& between_polls) {
  using Clock = std::chrono::steady_clock;
  constexpr std::chrono::microseconds kSpin{200}, kNap{50};
  const auto spin_until = Clock::now() + kSpin;
  while (!finished()) {
    between_polls();
    if (Clock::now() > spin_until) std::this_thread::sleep_for(kNap);
  }
}

}  // namespace aliquot
