#include "apps/train/reporting/progress.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "apps/console.h"

namespace aliquot {
namespace {

constexpr double kSecondsBetweenBars = 0.1, kSecondsBetweenLines = 10;
constexpr int64_t kAutoLines = 100, kFirstLines = 10;

/// Returns the largest 1, 2 or 5 times a power of ten that is at most `steps`; 1 if there is none.
int64_t nice_interval(int64_t steps) {
  int64_t power = 1;
  while (power <= steps / 10) power *= 10;
  for (const int64_t factor : {5, 2}) {
    if (factor * power <= steps) return factor * power;
  }
  return power;
}

int terminal_columns(std::FILE* out) {
  winsize size = {};
  if (ioctl(fileno(out), TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
  return 80;
}

/// "  loss 3.2104", or "" if the loss is not known.
std::string loss_text(const ProgressStep& s) { return s.loss ? fmt::format("  loss {:.4f}", *s.loss) : ""; }

}  // namespace

ProgressStyle progress_style(const std::string& choice, bool quiet, std::FILE* out) {
  if (quiet || choice == "none") return ProgressStyle::kNone;
  if (choice == "bar") return ProgressStyle::kBar;
  if (choice == "lines") return ProgressStyle::kLines;
  return is_on_terminal(out) ? ProgressStyle::kBar : ProgressStyle::kLines;
}

std::string progress_line(const ProgressStep& s, int64_t step_count, double seconds_left) {
  const std::string left = seconds_left > 0 ? fmt::format("  {} left", duration_text(seconds_left)) : "";
  return fmt::format("step {}/{}{}  norm {:.3g}  lr {:.3g}  {:.0f} tokens/s{}{}", s.step, step_count, loss_text(s),
                     s.grad_norm, s.lr, s.tokens_per_second, left, s.skipped ? "  skipped: not finite" : "");
}

std::string duration_text(double seconds) {
  if (!std::isfinite(seconds) || seconds < 0) return "?";
  const auto whole = static_cast<int64_t>(std::ceil(seconds));
  if (whole < 60) return fmt::format("{} s", whole);
  if (whole < 3600) return fmt::format("{} min {:02} s", whole / 60, whole % 60);
  return fmt::format("{} h {:02} min", whole / 3600, whole % 3600 / 60);
}

std::string progress_bar(const ProgressStep& s, int64_t step_count, double seconds_left, int columns) {
  const std::string text = fmt::format(" {}/{}{}  {:.0f} tokens/s  {} left", s.step, step_count, loss_text(s),
                                       s.tokens_per_second, duration_text(seconds_left));
  const int width = std::clamp(columns - static_cast<int>(text.size()) - 3, 0, 40);
  if (width < 5) return text.substr(1, static_cast<size_t>(std::max(columns - 1, 0)));
  const auto full = static_cast<size_t>(width * std::min(s.step, step_count) / std::max<int64_t>(step_count, 1));
  return "[" + std::string(full, '#') + std::string(static_cast<size_t>(width) - full, '.') + "]" + text;
}

LogInterval::LogInterval(int64_t every, int64_t first_step, int64_t last_step)
    : automatic_(every == kAuto),
      every_(automatic_ ? nice_interval((last_step - first_step) / kAutoLines) : every),
      first_step_(first_step),
      last_step_(last_step) {}

bool LogInterval::is_due(int64_t step, double now_seconds) {
  const bool early = automatic_ && step <= first_step_ + kFirstLines;
  const bool late = automatic_ && now_seconds - printed_seconds_ >= kSecondsBetweenLines;
  if (step % every_ != 0 && step != last_step_ && !early && !late) return false;
  printed_seconds_ = now_seconds;
  return true;
}

Progress::Progress(ProgressStyle style, const ProgressRange& range, int64_t log_every, std::FILE* out)
    : style_(style), range_(range), log_interval_(log_every, range.first_step, range.last_step), out_(out) {}

void Progress::show(const ProgressStep& step, double now_seconds) {
  if (style_ == ProgressStyle::kNone) return;
  const double left = seconds_left(step.step, now_seconds);
  if (style_ == ProgressStyle::kLines) {
    if (!log_interval_.is_due(step.step, now_seconds)) return;
    write_stream(out_, progress_line(step, range_.step_count, left) + "\n");
    std::fflush(out_);
    return;
  }
  waiting_ = {step, left};
  if (drawn_seconds_ >= 0 && now_seconds - drawn_seconds_ < kSecondsBetweenBars) return;
  drawn_seconds_ = now_seconds;
  draw();
}

/// NaN after the first step of this process. That step is slower (cold caches), so the estimate leaves it out.
double Progress::seconds_left(int64_t step, double now_seconds) {
  if (began_seconds_ < 0) {
    began_seconds_ = now_seconds;
    timed_step_ = step;
  }
  const int64_t done = step - timed_step_, ahead = range_.last_step - step;
  if (ahead <= 0) return 0;
  return done == 0 ? NAN : (now_seconds - began_seconds_) / static_cast<double>(done) * static_cast<double>(ahead);
}

void Progress::draw() {
  const auto& [step, seconds_left] = *waiting_;
  write_stream(out_,
               fmt::format("\r{}\x1b[K", progress_bar(step, range_.step_count, seconds_left, terminal_columns(out_))));
  std::fflush(out_);
  waiting_.reset();
  line_is_open_ = true;
}

// Draws the last step if the rate limit suppressed it, so that it stays on the screen.
void Progress::finish() {
  if (waiting_) draw();
  if (!line_is_open_) return;
  write_stream(out_, "\n");
  std::fflush(out_);
  line_is_open_ = false;
}

}  // namespace aliquot
