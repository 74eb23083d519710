#pragma once
// A bootstrap for forked processes, so that a test needs no launcher.

#include <memory>

#include "sharding/comm/bootstrap.h"

namespace aliquot {

/// Memory shared with processes that are forked after its construction. Large enough for the worlds of tests.
class ProcessesBootstrapStore {
 public:
  explicit ProcessesBootstrapStore(int rank_count, double timeout_seconds = 60);
  ~ProcessesBootstrapStore();
  ProcessesBootstrapStore(const ProcessesBootstrapStore&) = delete;
  ProcessesBootstrapStore& operator=(const ProcessesBootstrapStore&) = delete;

  /// Returns the bootstrap of `rank`. Each forked process calls this for its own rank.
  std::unique_ptr<Bootstrap> bootstrap(int rank);
  /// Makes ranks that wait in this bootstrap fail with `why`. Any process may call it.
  void abort(const char* why) noexcept;

  struct Shared;

 private:
  Shared* shared_;
  int rank_count_;
  double timeout_seconds_;
};

}  // namespace aliquot
