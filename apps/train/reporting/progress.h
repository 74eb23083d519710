#pragma once
// The progress that a run prints.

#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>
#include <utility>

namespace aliquot {

enum class ProgressStyle : uint8_t { kNone, kLines, kBar };

/// The style for the value of --progress, for output to `out`. "auto" is a bar on a terminal and lines otherwise.
ProgressStyle progress_style(const std::string& choice, bool quiet, std::FILE* out);

struct ProgressStep {
  int64_t step = 0;  // index of the step, from 1
  double loss = 0;
  double tokens_per_second = 0;
  double grad_norm = 0;
  double lr = 0;
  bool skipped = false;
};

/// Returns "step 12/100  loss 3.2104  norm 0.81  lr 0.0003  5120 tokens/s".
std::string progress_line(const ProgressStep& step, int64_t step_count);
/// Returns a bar with the loss, the rate and the time left, at most `columns` wide.
std::string progress_bar(const ProgressStep& step, int64_t step_count, double seconds_left, int columns);
/// Returns "42 s", "3 min 20 s", "2 h 05 min".
std::string duration_text(double seconds);

/// Prints progress to `out`, on rank 0. A bar stays on one line and is drawn at most ten times per second. The time
/// left is estimated from the steps of this process only, not from those before a resume.
class Progress {
 public:
  Progress(ProgressStyle style, int64_t first_step, int64_t step_count, std::FILE* out);

  void show(const ProgressStep& step, double now_seconds);
  /// Ends the line of the bar, so that other text may be written to `out`.
  void finish();

 private:
  void draw();

  ProgressStyle style_;
  int64_t first_step_, step_count_;
  std::FILE* out_;
  double began_seconds_ = -1, drawn_seconds_ = -1;
  std::optional<std::pair<ProgressStep, double>> waiting_;  // the step to draw next, and the seconds left
  bool line_is_open_ = false;
};

}  // namespace aliquot
