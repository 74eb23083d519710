#pragma once
// The exchange of forked processes, so that a test needs no launcher.

#include <memory>

#include "sharding/comm/exchange.h"

namespace aliquot {

/// Memory that processes forked after its making share. Enough for a test's worlds and groups.
class ProcessesHub {
 public:
  explicit ProcessesHub(int rank_count, double timeout_seconds = 60);
  ~ProcessesHub();
  ProcessesHub(const ProcessesHub&) = delete;
  ProcessesHub& operator=(const ProcessesHub&) = delete;

  /// In each forked process: its side.
  std::unique_ptr<Exchange> exchange(int rank);
  /// Makes every rank leave. From any process.
  void abort(const char* why) noexcept;

  struct Shared;

 private:
  Shared* shared_;
  int rank_count_;
  double timeout_seconds_;
};

}  // namespace aliquot
