#include "sharding/nccl/watchdog_nccl.h"

#include <fmt/format.h>

#include "kernels/device/poll_until.h"

namespace aliquot {

NcclWatchdog::NcclWatchdog(NcclHandle& handle, std::span<const Lane> lanes) : handle_(handle) {
  for (const Lane lane : lanes) {
    for (std::size_t i = 0; i < kCapacity; ++i)
      lanes_[static_cast<std::size_t>(lane)].ring.push_back(
          std::make_unique<PendingCollective>(handle.device().ordinal()));
  }
  handle_.device().add_watchdog(*this);
}

NcclWatchdog::~NcclWatchdog() { handle_.device().remove_watchdog(*this); }

void NcclWatchdog::begin(CudaStream& stream, const CollectiveCall& call) {
  PendingRing& lane = of(stream);
  wait_for_free_slot(lane);
  const auto& pending = lane.ring[(lane.oldest + lane.count) % kCapacity];
  pending->call = call;
  pending->seen_running = false;
  stream.record(pending->before);
}

void NcclWatchdog::end(CudaStream& stream) {
  PendingRing& lane = of(stream);
  stream.record(lane.ring[(lane.oldest + lane.count) % kCapacity]->after);
  // begin() must not count the collective yet: until record() above, `after` can be an event of an earlier collective
  // that has passed.
  ++lane.count;
}

void NcclWatchdog::poll() {
  handle_.throw_if_failed("a wait for the GPU");
  for (PendingRing& lane : lanes_) {
    retire(lane);
    if (lane.count > 0) check_oldest(lane);
  }
}

bool NcclWatchdog::idle() {
  if (handle_.broken()) return true;
  bool idle = true;
  for (PendingRing& lane : lanes_) {
    retire(lane);
    idle = idle && lane.count == 0;
  }
  return idle;
}

// Waits instead of issuing a collective that the watchdog does not check, because that collective could hang unnoticed.
void NcclWatchdog::wait_for_free_slot(PendingRing& lane) {
  const auto has_free_slot = [&] {
    retire(lane);
    return lane.count < kCapacity;
  };
  poll_until(has_free_slot, [this] { handle_.device().poll_watchdogs(); });
}

void NcclWatchdog::retire(PendingRing& lane) {
  while (lane.count > 0 && lane.ring[lane.oldest]->after.passed()) {
    lane.oldest = (lane.oldest + 1) % kCapacity;
    --lane.count;
  }
}

void NcclWatchdog::check_oldest(PendingRing& lane) {
  PendingCollective& pending = *lane.ring[lane.oldest];
  if (!pending.seen_running) {
    if (!pending.before.passed()) return;
    pending.seen_running = true;
    pending.since = Clock::now();
    return;
  }
  const double limit_seconds = handle_.timeout_seconds();
  if (std::chrono::duration<double>(Clock::now() - pending.since).count() <= limit_seconds) return;
  handle_.fail(fmt::format("rank {} waited {:g} s for the GPU to complete {}; {}", handle_.peers().global_rank(),
                           limit_seconds, pending.call.text(),
                           handle_.peers().has_board() ? "every rank had issued it, so a GPU or a link is stuck"
                                                       : "another rank never issued it, or a GPU or a link is stuck"));
}

}  // namespace aliquot
