#pragma once
// A communicator that notes every collective before another one does it.

#include <memory>

#include "sharding/comm/communicator.h"
#include "sharding/flight/flight_recorder.h"

namespace aliquot {

/// `ranks`, with every collective and every gather_objects() noted in `recorder`; groups split off it are noted too. `timed`:
/// also when each collective begins and ends, two short pieces of work on its stream; for host streams, since a GPU would stop
/// for them. Collective.
std::unique_ptr<Communicator> record_collectives(std::unique_ptr<Communicator> ranks,
                                                 std::shared_ptr<FlightRecorder> recorder, bool timed);

}  // namespace aliquot
