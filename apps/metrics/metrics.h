#pragma once
// The --metrics file of a run: one JSON object per line.

#include <cstdint>
#include <fstream>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <utility>
#include <vector>

#include "kernels/system/ledger.h"

namespace aliquot {

using Json = nlohmann::ordered_json;

/// The memory of a run so far: the maximum of each value over all ranks.
struct MemoryRecord {
  BytesByCategory by_category{};  // the peak of each category
  int64_t peak_bytes = 0;         // the peak of the total of all categories
  int64_t outside_bytes = 0;      // memory that the operating system counts and the ledger does not
};

struct StepRecord {
  int64_t step = 0;  // index of the step, from 1
  double loss = 0;   // the mean over the tokens of the global batch
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
  BytesByCategory planned{}, measured{};  // the peaks of each category
  int64_t planned_peak_bytes = 0, measured_peak_bytes = 0;
  // The memory of a rank as counted by the operating system: at the end of the run, at its peak, and before the run
  // allocates memory. Each number is the maximum over the ranks.
  int64_t system_bytes = 0;
  int64_t system_peak_bytes = 0;
  std::string system_peak_phase = {};  // the phase of the run in which system_peak_bytes occurred
  int64_t system_start_bytes = 0;
  // The peak of a rank in each phase that exceeded all earlier phases, in the order of RunPhase.
  std::vector<std::pair<std::string, int64_t>> system_bytes_by_phase = {};
  /// The maxima over the ranks of one pipeline stage.
  struct Stage {
    BytesByCategory planned{}, measured{};
    int64_t planned_peak_bytes = 0, measured_peak_bytes = 0;
  };
  std::vector<Stage> stages = {};  // empty without a pipeline
};

/// Returns {"parameters": .., ..}: the bytes of each category. Leaves out the category of the arena, because the arena
/// contains memory of the other categories.
Json json(const BytesByCategory& bytes);
/// Returns the JSON object for one line of the metrics file. `extra` is null, or an object with additional members:
/// eval_loss, digest, loss_scale. They are appended to the result.
Json json(const StepRecord& record, const Json& extra);
Json json(const StepRecord& record);
Json json(const DoneRecord& record);

/// Writes JSON lines to a file, on rank 0. Each line is flushed when write() returns. Numbers read back to the same
/// bits; numbers that are not finite are written as null. The constructor throws UsageError if the file cannot be
/// opened, and write() throws FaultError if the line cannot be written.
class MetricsFile {
 public:
  enum class Mode : uint8_t { kTruncate, kAppend };  // kAppend begins a new line if the last one is truncated

  MetricsFile(std::string path, Mode mode);
  void write(const Json& object);

 private:
  std::string path_;
  std::ofstream file_;
};

}  // namespace aliquot
