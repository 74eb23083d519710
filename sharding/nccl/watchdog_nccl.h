#pragma once
// Detection of NCCL collectives that do not complete.

#include <array>
#include <chrono>
#include <memory>
#include <span>
#include <vector>

#include "sharding/nccl/handle_nccl.h"

namespace aliquot {

/// The watchdog of one NCCL communicator. Records one event before and one after each collective. The timeout starts
/// when the first event has passed, so that it excludes earlier work in the stream. Polled whenever the rank waits for
/// a stream of its device. Calls NcclHandle::fail() if a collective exceeds the timeout.
class NcclWatchdog final : public Watchdog {
 public:
  /// Watches the collectives of `lanes`. Makes all events, so that none are made between collectives.
  NcclWatchdog(NcclHandle& handle, std::span<const Lane> lanes);
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
  /// Ring of the pending collectives of one lane, oldest first. A collective that hangs blocks all later ones, so only
  /// the oldest one is checked and reported.
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
