#pragma once
// What a run shows of itself while it runs.

#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>
#include <utility>

namespace aliquot {

enum class ProgressStyle : uint8_t { kNone, kLines, kBar };

/// --progress as given, for a run that writes to `out`: auto is a bar on a terminal and lines elsewhere.
ProgressStyle progress_style(const std::string& choice, bool quiet, std::FILE* out);

struct ProgressStep {
  int64_t step = 0;  // from 1
  double loss = 0;
  double tokens_per_second = 0;
  double grad_norm = 0;
  double lr = 0;
  bool skipped = false;
};

/// "step 12/100  loss 3.2104  norm 0.81  lr 0.0003  5120 tokens/s".
std::string progress_line(const ProgressStep& step, int64_t step_count);
/// The same with a bar and the time left, at most `columns` wide.
std::string progress_bar(const ProgressStep& step, int64_t step_count, double seconds_left, int columns);
/// "42 s", "3 min 20 s", "2 h 05 min".
std::string duration_text(double seconds);

/// Writes them to `out`, rank 0's; a bar stays on one line and is drawn at most ten times a second. Time left follows
/// from the steps of this run, so a resumed run tells the truth.
class Progress {
 public:
  Progress(ProgressStyle style, int64_t first_step, int64_t step_count, std::FILE* out);

  void show(const ProgressStep& step, double now_seconds);
  /// Leaves the bar's line; anything else may be written to `out` after it.
  void finish();

 private:
  void draw();

  ProgressStyle style_;
  int64_t first_step_, step_count_;
  std::FILE* out_;
  double began_seconds_ = -1, drawn_seconds_ = -1;
  std::optional<std::pair<ProgressStep, double>> waiting_;  // shown but not drawn yet, and the time left
  bool line_is_open_ = false;
};

}  // namespace aliquot
