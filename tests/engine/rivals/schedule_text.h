#pragma once
// Prints all of a schedule, and reads it back.

#include <string>

#include "engine/plan/schedule.h"

namespace aliquot::testing {

/// Prints every field of the schedule: one line for the schedule, then one for each operation and each buffer.
std::string full_text(const Schedule& schedule);

/// Reads the result of full_text(). Throws std::runtime_error if the text is not one.
Schedule schedule_of(const std::string& text);

}  // namespace aliquot::testing
