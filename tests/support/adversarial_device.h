#pragma once
// A test device that exposes missing waits in a schedule.

#include <cstdint>
#include <memory>

#include "kernels/device/device.h"

namespace aliquot {

/// Holds the queued work of all thread ranks and runs it in an order chosen by the seed: as late, as early or as random
/// as the recorded waits allow. Runs one piece at a time, so a missing wait gives a wrong result and no data race. All
/// ranks of one world share it. It must outlive their devices.
class AdversarialScheduler {
 public:
  enum class Compute : uint8_t {
    kInline,  // the rank's thread runs it before the call returns, as on a host: events have always passed
    kQueued,  // queued as on a GPU: other lanes must wait for it, and the rank's thread must call synchronize()
              // before it reads results
  };

  explicit AdversarialScheduler(uint64_t seed, Compute compute = Compute::kInline);
  ~AdversarialScheduler();
  AdversarialScheduler(const AdversarialScheduler&) = delete;
  AdversarialScheduler& operator=(const AdversarialScheduler&) = delete;

  /// A host device with one thread, whose streams belong to this adversary. With kInline the compute stream does not.
  /// New memory has random bytes.
  std::unique_ptr<Device> make_device();

  struct State;

 private:
  std::shared_ptr<State> state_;
};

}  // namespace aliquot
