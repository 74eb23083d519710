#pragma once
// Rivals of a plan: other plans of the same step, which must give the same bits.

#include <span>
#include <string_view>
#include <vector>

#include "engine/plan/schedule.h"

namespace aliquot::testing {

struct Rival {
  std::string_view name;
  void (*rewrite)(std::vector<Plan>& stages);
};

/// All kinds of rivals:
/// - printed and parsed: the schedule that full_text() prints.
/// - one after another: each operation waits for the one before it, except transfers between pipeline stages.
/// - one lane: gathers and reduces run on the compute lane.
/// - mirrored: buffers of the arena that are not persistent have the opposite order of addresses.
/// - apart: these buffers share no bytes.
std::span<const Rival> all_rivals();

}  // namespace aliquot::testing
