#pragma once
// The progress that a run prints.

#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>
#include <utility>

namespace aliquot {

enum class ProgressStyle : uint8_t { kNone, kLines, kBar };

/// The style for the value of --progress, for output to `out`. "auto" is a bar if is_on_terminal(out), else lines.
ProgressStyle progress_style(const std::string& choice, bool quiet, std::FILE* out);

struct ProgressStep {
  int64_t step = 0;                // index of the step, from 1
  std::optional<double> loss = 0;  // empty: this rank does not know it
  double tokens_per_second = 0;
  double grad_norm = 0;
  double lr = 0;
  bool skipped = false;
};

/// Returns "step 12/100  loss 3.2104  norm 0.81  lr 0.0003  5120 tokens/s  42 s left". Leaves out the time left if it
/// is not a number or 0.
std::string progress_line(const ProgressStep& step, int64_t step_count, double seconds_left);
/// Returns a bar with the loss, the rate and the time left, at most `columns` wide.
std::string progress_bar(const ProgressStep& step, int64_t step_count, double seconds_left, int columns);
/// Returns "42 s", "3 min 20 s", "2 h 05 min".
std::string duration_text(double seconds);

/// Chooses the steps for which a run prints a line.
class LogInterval {
 public:
  /// The value of --log-every auto.
  static constexpr int64_t kAuto = 0;

  /// Chooses every `every`-th step of the run, and the last step. With kAuto, chooses the first ten steps after
  /// `first_step`, about 100 steps at equal distances (a power of ten, or 2 or 5 times a power of ten), the last step,
  /// and any step ten seconds after the last line.
  LogInterval(int64_t every, int64_t first_step, int64_t last_step);

  /// Whether to print a line for `step`. Call it once for each step, in order.
  bool is_due(int64_t step, double now_seconds);

 private:
  bool automatic_;
  int64_t every_, first_step_, last_step_;
  double printed_seconds_ = 0;
};

/// The steps of a run, for Progress.
struct ProgressRange {
  int64_t first_step = 0;  // the step before the first step of this process
  int64_t last_step = 0;   // where this process stops
  int64_t step_count = 0;  // --steps
};

/// Prints progress to `out`, on rank 0. A bar stays on one line and is drawn at most ten times per second. The time
/// left is estimated from the steps of this process only, not from those before a resume.
class Progress {
 public:
  Progress(ProgressStyle style, const ProgressRange& range, int64_t log_every, std::FILE* out);

  void show(const ProgressStep& step, double now_seconds);
  /// Ends the line of the bar, so that other text may be written to `out`.
  void finish();

 private:
  double seconds_left(int64_t step, double now_seconds);
  void draw();

  ProgressStyle style_;
  ProgressRange range_;
  LogInterval log_interval_;
  std::FILE* out_;
  int64_t timed_step_ = 0;  // the first step of this process, which ended at began_seconds_
  double began_seconds_ = -1, drawn_seconds_ = -1;
  std::optional<std::pair<ProgressStep, double>> waiting_;  // the step to draw next, and the seconds left
  bool line_is_open_ = false;
};

}  // namespace aliquot
