#pragma once
// Runs thread ranks that should fail, and checks their error messages.

#include <chrono>
#include <functional>
#include <gtest/gtest.h>
#include <initializer_list>
#include <string>
#include <string_view>

#include "sharding/world.h"

namespace aliquot {

/// Runs `body` in a world with a short deadline and returns the message of the exception from World::threads, or "".
inline std::string failure_of(int rank_count, const std::function<void(World&)>& body, double timeout_seconds = 0.3) {
  const auto start = std::chrono::steady_clock::now();
  std::string message;
  try {
    World::threads(rank_count, body, {.device = DeviceChoice::kHost, .timeout_seconds = timeout_seconds});
  } catch (const std::exception& error) {
    message = error.what();
  }
  EXPECT_LT(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(), timeout_seconds + 2.0)
      << "a rank did not stop at the deadline";
  return message;
}

inline bool expect_contains(const std::string& message, std::initializer_list<std::string_view> parts) {
  for (const auto part : parts) {
    if (message.find(part) == std::string::npos) {
      ADD_FAILURE() << "\"" << message << "\" does not contain \"" << part << "\"";
      return false;
    }
  }
  return true;
}

inline void barrier(World& world, Communicator& group, Lane lane, Label label) {
  const auto stream = world.device().make_stream(lane);
  group.barrier(*stream, label);
  stream->synchronize();
}

inline void barrier(World& world, Lane lane, Label label) { barrier(world, world.communicator(), lane, label); }

}  // namespace aliquot
