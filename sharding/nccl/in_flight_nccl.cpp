#include "sharding/nccl/in_flight_nccl.h"

#include <fmt/format.h>

#include "kernels/device/poll_until.h"

namespace aliquot {

InFlight::InFlight(NcclHandle& handle) : handle_(handle) {
  for (LaneFlights& lane : lanes_) lane.ring.resize(kCapacity);
  handle_.device().add_watch(*this);
}

InFlight::~InFlight() { handle_.device().remove_watch(*this); }

void InFlight::begin(CudaStream& stream, const Errand& errand) {
  LaneFlights& lane = of(stream);
  wait_for_room(lane);
  auto& flight = lane.ring[(lane.oldest + lane.count) % kCapacity];
  if (flight == nullptr) flight = std::make_unique<Flight>(handle_.device().ordinal());
  flight->errand = errand;
  flight->seen_running = false;
  stream.record(flight->before);
}

void InFlight::end(CudaStream& stream) {
  LaneFlights& lane = of(stream);
  stream.record(lane.ring[(lane.oldest + lane.count) % kCapacity]->after);
  ++lane.count;  // only now: an `after` of an earlier use would look as if this one had landed
}

void InFlight::poll() {
  handle_.look("a wait for the GPU");
  for (LaneFlights& lane : lanes_) {
    retire(lane);
    if (lane.count > 0) watch_oldest(lane);
  }
}

bool InFlight::idle() {
  if (handle_.broken()) return true;
  bool idle = true;
  for (LaneFlights& lane : lanes_) {
    retire(lane);
    idle = idle && lane.count == 0;
  }
  return idle;
}

// A collective that nobody watches could hang for ever once all that were watched had landed.
void InFlight::wait_for_room(LaneFlights& lane) {
  const auto has_room = [&] {
    retire(lane);
    return lane.count < kCapacity;
  };
  poll_until(has_room, [this] { handle_.device().poll_watches(); });
}

void InFlight::retire(LaneFlights& lane) {
  while (lane.count > 0 && lane.ring[lane.oldest]->after.passed()) {
    lane.oldest = (lane.oldest + 1) % kCapacity;
    --lane.count;
  }
}

void InFlight::watch_oldest(LaneFlights& lane) {
  Flight& flight = *lane.ring[lane.oldest];
  if (!flight.seen_running) {
    if (!flight.before.passed()) return;
    flight.seen_running = true;
    flight.since = Clock::now();
    return;
  }
  const double limit_seconds = handle_.options().timeout_seconds;
  if (std::chrono::duration<double>(Clock::now() - flight.since).count() <= limit_seconds) return;
  handle_.fail(fmt::format("rank {} waited {:g} s for the GPU to end {}; {}", handle_.peers().name(), limit_seconds,
                           flight.errand.text(),
                           handle_.peers().has_board() ? "every rank had issued it, so a GPU or a link is stuck"
                                                       : "another rank never issued it, or a GPU or a link is stuck"));
}

}  // namespace aliquot
