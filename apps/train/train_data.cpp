// Checks the data of a run before it starts.
#include <exception>
#include <fmt/format.h>
#include <unistd.h>

#include "apps/data/token_check.h"
#include "apps/say.h"
#include "apps/train/stop_request.h"
#include "apps/train/train_run.h"
#include "kernels/device/host_stream.h"
#include "kernels/system/seconds.h"

namespace aliquot {
namespace {

/// Writes to standard error once a check takes longer than a second: every second on a terminal, else one line.
class CheckProgress {
 public:
  explicit CheckProgress(const TokenSource& source) : source_(source) {}
  CheckProgress(const CheckProgress&) = delete;
  CheckProgress& operator=(const CheckProgress&) = delete;
  ~CheckProgress() {
    if (line_is_open_) say_text(stderr, "\r\x1b[K");
  }

  void show(double share) {
    constexpr double kPatience = 1;
    const double now = now_seconds();
    if (now - shown_ < kPatience || (told_ && !on_terminal_)) return;
    shown_ = now;
    told_ = true;
    const std::string text = fmt::format("checking the tokens of {}", source_.describe());
    if (!on_terminal_) return warn("{}.", text);
    line_is_open_ = true;
    say_text(stderr, fmt::format("\r{}: {:.0f} %\x1b[K", text, 100 * share));
  }

 private:
  const TokenSource& source_;
  const bool on_terminal_ = isatty(STDERR_FILENO) != 0;
  double shown_ = now_seconds();
  bool told_ = false, line_is_open_ = false;
};

}  // namespace

/// Each node checks its own copy of the file once: its ranks take equal parts.
void TrainRun::check_data(const TokenSource& source) {
  const Topology& topology = world_.topology();
  const auto node_ranks = topology.ranks_of_node(topology.node_of_rank[world_.rank()]);
  const auto place = std::ranges::find(node_ranks, world_.rank()) - node_ranks.begin();
  std::optional<ThreadPool> own_pool;
  if (on_gpu()) own_pool.emplace(1);
  CheckProgress progress(source);
  const bool shows = leads() && !options_.quiet;
  // A run that was asked to stop does so after its first step, where reading checks each token again.
  const auto go_on = [&](double share) {
    if (shows) progress.show(share);
    return stop_signal() == 0;
  };
  check_tokens(source, *options_.vocabulary, {static_cast<int>(place), static_cast<int>(node_ranks.size())},
               own_pool ? *own_pool : host(*stream_).pool(), go_on);
}

/// Collective. Where a rank fails all throw: that rank its own error, the others UsageError with the same sentence.
void TrainRun::check_data() {
  const bool is_stored = data_.token_bytes() > 0 || evaluated_data_ != nullptr;
  if (!is_stored) return;
  std::string complaint;
  std::exception_ptr own;
  try {
    check_data(data_);
    if (evaluated_data_ != nullptr) check_data(*evaluated_data_);
  } catch (const Error& error) {
    own = std::current_exception();
    complaint = error.what();
  }
  for (const std::string& any : world_.communicator().gather_objects(complaint)) {
    if (any.empty()) continue;
    if (own) std::rethrow_exception(own);
    throw UsageError(any);
  }
}

}  // namespace aliquot
