#include "apps/metrics/metrics.h"

#include <filesystem>
#include <nlohmann/json.hpp>

#include "kernels/system/error.h"

namespace aliquot {
namespace {

/// Whether the last line of a regular file has no newline. False for pipes and devices.
bool ends_mid_line(const std::string& path) {
  std::error_code failed;
  if (!std::filesystem::is_regular_file(path, failed)) return false;
  std::ifstream file(path, std::ios::binary);
  char last = '\n';
  return file.seekg(-1, std::ios::end) && file.get(last) && last != '\n';
}

}  // namespace

Json json(const BytesByCategory& bytes) {
  Json object = Json::object();
  for (int i = 0; i < kCategoryCount; ++i) {
    const auto category = static_cast<Category>(i);
    if (category != Category::kArena) object[std::string(name(category))] = bytes[static_cast<size_t>(i)];
  }
  return object;
}

Json json(const StepRecord& r) { return json(r, nullptr); }

Json json(const StepRecord& r, const Json& extra) {
  Json memory = json(r.memory.by_category);
  memory["peak"] = r.memory.peak_bytes;
  memory["outside"] = r.memory.outside_bytes;
  Json object = {{"step", r.step},
                 {"loss", r.loss},
                 {"grad_norm", r.grad_norm},
                 {"lr", r.lr},
                 {"tokens", r.tokens},
                 {"step_seconds", r.step_seconds},
                 {"tokens_per_second", r.tokens_per_second},
                 {"skipped", r.skipped},
                 {"memory", std::move(memory)}};
  if (extra.is_object()) object.update(extra);
  return object;
}

Json json(const DoneRecord& r) {
  Json done = {{"digest", r.digest},
               {"steps", r.steps},
               {"planned", json(r.planned)},
               {"measured", json(r.measured)},
               {"planned_peak", r.planned_peak_bytes},
               {"measured_peak", r.measured_peak_bytes},
               {"system_bytes", r.system_bytes},
               {"system_peak", r.system_peak_bytes},
               {"system_peak_phase", r.system_peak_phase},
               {"system_start", r.system_start_bytes},
               {"system_phases", Json::object()}};
  for (const auto& [phase, bytes] : r.system_bytes_by_phase) done["system_phases"][phase] = bytes;
  for (const DoneRecord::Stage& stage : r.stages) {
    done["stages"].push_back({{"planned", json(stage.planned)},
                              {"measured", json(stage.measured)},
                              {"planned_peak", stage.planned_peak_bytes},
                              {"measured_peak", stage.measured_peak_bytes}});
  }
  return {{"done", done}};
}

MetricsFile::MetricsFile(std::string path, Mode mode)
    : path_(std::move(path)), file_(path_, mode == Mode::kTruncate ? std::ios::trunc : std::ios::app) {
  if (!file_) throw UsageError("--metrics " + path_ + ": the file cannot be written: check that its directory exists.");
  // A run that was killed while writing may have left a truncated line.
  if (mode == Mode::kAppend && ends_mid_line(path_)) file_ << '\n';
}

void MetricsFile::write(const Json& object) {
  // JSON must be UTF-8, but paths among the options may not be.
  file_ << object.dump(-1, ' ', false, Json::error_handler_t::replace) << '\n' << std::flush;
  if (!file_) throw FaultError("--metrics " + path_ + ": a write failed (is the disk full?).");
}

}  // namespace aliquot
