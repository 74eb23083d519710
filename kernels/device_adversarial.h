#pragma once
// The device that tests run on to find waits that somebody forgot.

#include <cstdint>
#include <memory>

#include "kernels/device.h"

namespace aliquot {

/// Holds the queued work of all thread-ranks and runs it, by seed, as late, as early or in as strange an order as the
/// recorded waits allow; one piece at a time, so a missing wait is a wrong answer rather than a race. Shared by all ranks
/// of one world; outlives their devices.
class Adversary {
 public:
  explicit Adversary(uint64_t seed);
  ~Adversary();
  Adversary(const Adversary&) = delete;
  Adversary& operator=(const Adversary&) = delete;

  /// A host device, of one thread, whose streams but the compute lane belong to this adversary.
  std::unique_ptr<Device> make_device();

  struct State;

 private:
  std::shared_ptr<State> state_;
};

}  // namespace aliquot
