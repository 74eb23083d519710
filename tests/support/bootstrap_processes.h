#pragma once
// The bootstrap of forked processes, so that a test needs no launcher.

#include <memory>

#include "sharding/comm/bootstrap.h"

namespace aliquot {

/// Memory that processes forked after its making share. Enough for a test's worlds and groups.
class ProcessesBootstrapStore {
 public:
  explicit ProcessesBootstrapStore(int rank_count, double timeout_seconds = 60);
  ~ProcessesBootstrapStore();
  ProcessesBootstrapStore(const ProcessesBootstrapStore&) = delete;
  ProcessesBootstrapStore& operator=(const ProcessesBootstrapStore&) = delete;

  /// In each forked process: its side.
  std::unique_ptr<Bootstrap> bootstrap(int rank);
  /// Makes every rank leave. From any process.
  void abort(const char* why) noexcept;

  struct Shared;

 private:
  Shared* shared_;
  int rank_count_;
  double timeout_seconds_;
};

}  // namespace aliquot
