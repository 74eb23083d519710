#pragma once
// The record of a run: one JSON object a line.

#include <cstdint>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "kernels/system/ledger.h"

namespace aliquot {

using Json = nlohmann::ordered_json;

/// Bytes by category of the rank with the most, beside the peak of their sum and what the ledger does not know of.
struct MemoryRecord {
  BytesByCategory by_category{};
  int64_t peak_bytes = 0;
  int64_t outside_bytes = 0;
};

struct StepRecord {
  int64_t step = 0;  // from 1
  double loss = 0;   // the mean over the global batch's tokens
  double grad_norm = 0;
  double lr = 0;
  int64_t tokens = 0;
  double step_seconds = 0;
  double tokens_per_second = 0;
  bool skipped = false;
  MemoryRecord memory = {};
};

struct DoneRecord {
  std::string digest;
  int64_t steps = 0;
  BytesByCategory planned{}, measured{};  // each category's peak
  int64_t planned_peak_bytes = 0, measured_peak_bytes = 0;
  int64_t system_bytes = 0;       // what the system says a rank holds, at the end
  int64_t system_peak_bytes = 0;  // the most that it counted for a rank, and while the rank did what
  std::string system_peak_phase = {};
  int64_t system_start_bytes = 0;  // what it counted before the run took anything
};

/// {"parameters": .., ..}, every category but the arena, which holds the others.
Json json(const BytesByCategory& bytes);
/// The manual's objects. `extra`'s members, if any, follow the step's (eval_loss, digest).
Json json(const StepRecord& record, const Json& extra = nullptr);
Json json(const DoneRecord& record);

/// Appends lines to a file, each complete when write() returns, and the first on a line of its own. Numbers read back to the same bits; what is not finite is
/// null. Rank 0's. Throws UsageError when the file cannot be opened and FaultError when it cannot be written.
class MetricsFile {
 public:
  enum class Mode : uint8_t { kTruncate, kAppend };

  MetricsFile(std::string path, Mode mode);
  void write(const Json& object);

 private:
  std::string path_;
  std::ofstream file_;
};

}  // namespace aliquot
