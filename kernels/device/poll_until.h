#pragma once
// Waiting for something that can only be asked.

#include <chrono>
#include <thread>

namespace aliquot {

/// Asks `finished` until it says yes: at first again and again, then in naps, so that a short wait is short and a long one
/// costs no core. In between it calls `between_polls`, which may throw to end the wait.
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
