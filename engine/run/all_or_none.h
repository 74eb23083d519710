#pragma once
// Steps of setting up that one rank may fail at, before all go on.

#include <exception>
#include <fmt/format.h>
#include <string>

#include "kernels/system/error.h"
#include "sharding/world.h"

namespace aliquot {

/// Runs `attempt` on every rank of the world. A rank that fails throws what it threw; the others throw UnavailableError with
/// its sentence, so that nobody waits for it. Collective and blocking.
template <typename Attempt>
void all_or_none(World& world, const Attempt& attempt) {
  std::string sentence;
  std::exception_ptr own;
  try {
    attempt();
  } catch (const std::exception& error) {
    own = std::current_exception();
    sentence = error.what();
  }
  const auto all = world.communicator().gather_objects(sentence);
  if (own) std::rethrow_exception(own);
  for (std::size_t r = 0; r < all.size(); ++r) {
    if (!all[r].empty()) throw UnavailableError(fmt::format("rank {}: {}", r, all[r]));
  }
}

}  // namespace aliquot
