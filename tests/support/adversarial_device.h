#pragma once
// A test device that exposes missing waits in a schedule.

#include <cstdint>
#include <memory>

#include "kernels/device/device.h"

namespace aliquot {

/// Stores the queued work of all thread ranks. Depending on the seed, it runs work as late as possible, as early as
/// possible or in random order, within the limits of the recorded waits. It runs one task at a time, so a missing wait
/// gives a wrong result instead of a data race. All ranks of a world share one scheduler, which must outlive their
/// devices.
class AdversarialScheduler {
 public:
  enum class Compute : uint8_t {
    /// The rank's thread runs compute work before the call returns, as on a host. Events
    /// of this work have already passed.
    kInline,
    /// Compute work is queued, as on a GPU. Other lanes must wait for it. The rank's thread must call synchronize()
    /// before it reads results.
    kQueued,
  };

  explicit AdversarialScheduler(uint64_t seed, Compute compute = Compute::kInline);
  ~AdversarialScheduler();
  AdversarialScheduler(const AdversarialScheduler&) = delete;
  AdversarialScheduler& operator=(const AdversarialScheduler&) = delete;

  /// Makes a host device with one thread. This scheduler runs the work of its streams, except compute work if the
  /// scheduler was constructed with kInline. New memory has random bytes. `kernels`: replaces the kernels of the
  /// device, and must outlive it.
  std::unique_ptr<Device> make_device(const Kernels* kernels = nullptr);

  struct State;

 private:
  std::shared_ptr<State> state_;
};

}  // namespace aliquot
