#pragma once
// The device that tests run on to find waits that somebody forgot.

#include <cstdint>
#include <memory>

#include "kernels/device/device.h"

namespace aliquot {

/// Holds the queued work of all thread-ranks and runs it, by seed, as late, as early or in as strange an order as the
/// recorded waits allow; one piece at a time, so a missing wait is a wrong answer rather than a race. Shared by all ranks
/// of one world; outlives their devices.
class AdversarialScheduler {
 public:
  enum class Compute : uint8_t {
    kInline,  // done by the rank's own thread before the call returns, as on a host: its events have always passed
    kQueued,  // queued as on a GPU, where the other lanes' waits for it matter; the rank's thread sees what it wrote only
              // after synchronize()
  };

  explicit AdversarialScheduler(uint64_t seed, Compute compute = Compute::kInline);
  ~AdversarialScheduler();
  AdversarialScheduler(const AdversarialScheduler&) = delete;
  AdversarialScheduler& operator=(const AdversarialScheduler&) = delete;

  /// A host device, of one thread, whose streams, the compute lane only if it is queued, belong to this adversary. Memory
  /// that it allocates holds random bytes.
  std::unique_ptr<Device> make_device();

  struct State;

 private:
  std::shared_ptr<State> state_;
};

}  // namespace aliquot
