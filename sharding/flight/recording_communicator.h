#pragma once
// A communicator that records every collective and forwards it to another communicator.

#include <memory>

#include "sharding/comm/communicator.h"
#include "sharding/flight/flight_recorder.h"

namespace aliquot {

/// Wraps `ranks` so that `recorder` records every collective and every gather_objects(), including those of groups that
/// are later split from it. If `timed`, two short tasks on the stream record when each collective begins and ends. Set
/// `timed` only for host streams, because such tasks stall a GPU. `name`: see Communicator::split(). Collective.
std::unique_ptr<Communicator> record_collectives(std::unique_ptr<Communicator> ranks,
                                                 std::shared_ptr<FlightRecorder> recorder, bool timed,
                                                 std::string_view name);

}  // namespace aliquot
