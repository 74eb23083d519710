#pragma once
// Which collectives the GPU has been given, and whether one of them never ends.

#include <array>
#include <chrono>
#include <memory>
#include <vector>

#include "sharding/nccl/handle_nccl.h"

namespace aliquot {

/// The watch of one NCCL communicator. An event before and one after each collective tell whether it has begun, so that
/// the time it waits behind a long computation does not count, and whether it has ended. Polled whenever the rank waits
/// for a stream of its device; fails the handle when a collective has been running for longer than the deadline.
class NcclWatchdog final : public Watchdog {
 public:
  explicit NcclWatchdog(NcclHandle& handle);
  ~NcclWatchdog() override;
  NcclWatchdog(const NcclWatchdog&) = delete;
  NcclWatchdog& operator=(const NcclWatchdog&) = delete;

  /// Blocks while the lane has kCapacity collectives in flight. Throws as poll() does.
  void begin(CudaStream& stream, const CollectiveCall& call);
  void end(CudaStream& stream);
  void poll() override;
  bool idle() override;

 private:
  using Clock = std::chrono::steady_clock;
  struct PendingCollective {
    explicit PendingCollective(int ordinal) : before(ordinal), after(ordinal) {}
    CudaEvent before, after;
    CollectiveCall call;
    bool seen_running = false;
    Clock::time_point since;
  };
  /// One lane's, the oldest first, in a ring. If one hangs, so does all behind it, and it is the one to name.
  struct PendingRing {
    std::vector<std::unique_ptr<PendingCollective>> ring;
    std::size_t oldest = 0, count = 0;
  };
  static constexpr std::size_t kCapacity = 64;

  PendingRing& of(const CudaStream& stream) { return lanes_[static_cast<std::size_t>(stream.lane())]; }
  void wait_for_free_slot(PendingRing& lane);
  void retire(PendingRing& lane);
  void check_oldest(PendingRing& lane);

  NcclHandle& handle_;
  std::array<PendingRing, kLaneCount> lanes_;
};

}  // namespace aliquot
