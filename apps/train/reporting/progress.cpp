#include "apps/train/reporting/progress.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "apps/console.h"

namespace aliquot {
namespace {

constexpr double kSecondsBetweenBars = 0.1;

int terminal_columns(std::FILE* out) {
  winsize size = {};
  if (ioctl(fileno(out), TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
  return 80;
}

}  // namespace

ProgressStyle progress_style(const std::string& choice, bool quiet, std::FILE* out) {
  if (quiet || choice == "none") return ProgressStyle::kNone;
  if (choice == "bar") return ProgressStyle::kBar;
  if (choice == "lines") return ProgressStyle::kLines;
  return isatty(fileno(out)) != 0 ? ProgressStyle::kBar : ProgressStyle::kLines;
}

std::string progress_line(const ProgressStep& s, int64_t step_count) {
  return fmt::format("step {}/{}  loss {:.4f}  norm {:.3g}  lr {:.3g}  {:.0f} tokens/s{}", s.step, step_count, s.loss,
                     s.grad_norm, s.lr, s.tokens_per_second, s.skipped ? "  skipped: not finite" : "");
}

std::string duration_text(double seconds) {
  if (!std::isfinite(seconds) || seconds < 0) return "?";
  const auto whole = static_cast<int64_t>(std::ceil(seconds));
  if (whole < 60) return fmt::format("{} s", whole);
  if (whole < 3600) return fmt::format("{} min {:02} s", whole / 60, whole % 60);
  return fmt::format("{} h {:02} min", whole / 3600, whole % 3600 / 60);
}

std::string progress_bar(const ProgressStep& s, int64_t step_count, double seconds_left, int columns) {
  const std::string text = fmt::format(" {}/{}  loss {:.4f}  {:.0f} tokens/s  {} left", s.step, step_count, s.loss,
                                       s.tokens_per_second, duration_text(seconds_left));
  const int width = std::clamp(columns - static_cast<int>(text.size()) - 3, 0, 40);
  if (width < 5) return text.substr(1, static_cast<size_t>(std::max(columns - 1, 0)));
  const auto full = static_cast<size_t>(width * std::min(s.step, step_count) / std::max<int64_t>(step_count, 1));
  return "[" + std::string(full, '#') + std::string(static_cast<size_t>(width) - full, '.') + "]" + text;
}

Progress::Progress(ProgressStyle style, int64_t first_step, int64_t step_count, std::FILE* out)
    : style_(style), first_step_(first_step), step_count_(step_count), out_(out) {}

void Progress::show(const ProgressStep& step, double now_seconds) {
  if (style_ == ProgressStyle::kNone) return;
  if (style_ == ProgressStyle::kLines) {
    write_stream(out_, progress_line(step, step_count_) + "\n");
    std::fflush(out_);
    return;
  }
  if (began_seconds_ < 0) {  // the first step is slower (cold caches), so the estimate leaves it out
    began_seconds_ = now_seconds;
    first_step_ = step.step;
  }
  const int64_t done = step.step - first_step_, ahead = step_count_ - step.step;
  const double each = (now_seconds - began_seconds_) / static_cast<double>(done);
  waiting_ = {step, ahead <= 0 ? 0 : done == 0 ? NAN : each * static_cast<double>(ahead)};
  if (drawn_seconds_ >= 0 && now_seconds - drawn_seconds_ < kSecondsBetweenBars) return;
  drawn_seconds_ = now_seconds;
  draw();
}

void Progress::draw() {
  const auto& [step, seconds_left] = *waiting_;
  write_stream(out_, fmt::format("\r{}\x1b[K", progress_bar(step, step_count_, seconds_left, terminal_columns(out_))));
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
