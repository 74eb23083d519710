#include "apps/train/train_data.h"

#include <algorithm>
#include <exception>
#include <fmt/format.h>
#include <unistd.h>

#include "apps/console.h"
#include "apps/data/token_check.h"
#include "apps/train/stop_request.h"
#include "apps/train/train_context.h"
#include "kernels/device/host_stream.h"
#include "kernels/system/error.h"
#include "kernels/system/seconds.h"

namespace aliquot {
namespace {

/// Reports progress on standard error if a check takes longer than a second: every second on a terminal, otherwise
/// once.
class CheckProgress {
 public:
  explicit CheckProgress(const TokenSource& source) : source_(source) {}
  CheckProgress(const CheckProgress&) = delete;
  CheckProgress& operator=(const CheckProgress&) = delete;
  ~CheckProgress() {
    if (line_is_open_) write_stream(stderr, "\r\x1b[K");
  }

  void show(double share) {
    constexpr double kIntervalSeconds = 1;
    const double now = now_seconds();
    if (now - shown_ < kIntervalSeconds || (progress_shown_ && !on_terminal_)) return;
    shown_ = now;
    progress_shown_ = true;
    const std::string text = fmt::format("checking the tokens of {}", source_.describe());
    if (!on_terminal_) return warn("{}.", text);
    line_is_open_ = true;
    write_stream(stderr, fmt::format("\r{}: {:.0f} %\x1b[K", text, 100 * share));
  }

 private:
  const TokenSource& source_;
  const bool on_terminal_ = isatty(STDERR_FILENO) != 0;
  double shown_ = now_seconds();
  bool progress_shown_ = false, line_is_open_ = false;
};

TokenBatch loaded(const Loader& loader) { return {loader.tokens(), loader.targets()}; }

/// Checks this rank's part of the tokens. The ranks of a node divide the work.
void check_part(const TrainContext& context, const TokenSource& source) {
  const World& world = context.world();
  const Topology& topology = world.topology();
  const auto node_ranks = topology.ranks_of_node(topology.node_of_rank[world.rank()]);
  const auto part = std::ranges::find(node_ranks, world.rank()) - node_ranks.begin();
  std::optional<ThreadPool> own_pool;
  if (context.on_gpu()) own_pool.emplace(1);
  CheckProgress progress(source);
  const bool shows = context.is_rank_zero() && !context.options().quiet;
  // A stop request ends the check early. This is safe: the loader checks each token again when it reads it.
  const auto go_on = [&](double share) {
    if (shows) progress.show(share);
    return stop_signal() == 0;
  };
  check_tokens(source, *context.options().vocabulary, {static_cast<int>(part), static_cast<int>(node_ranks.size())},
               own_pool ? *own_pool : as_host_stream(context.stream()).pool(), go_on);
}

/// "1000 tokens", or for several files "1000 tokens with weight 2, 500 tokens with weight 1".
std::string parts_text(const TokenSource& source) {
  const std::vector<TokenPart> parts = source.parts();
  if (parts.size() == 1) return fmt::format("{} tokens", source.token_count());
  std::string text;
  for (const TokenPart& part : parts)
    text += fmt::format("{}{} tokens with weight {}", text.empty() ? "" : ", ", part.count, part.weight);
  return text;
}

/// Ranks may read different copies of the data, but must read the same sequences. Throws the same error on all ranks.
void check_same_parts(const TrainContext& context, const TokenSource& source, const char* option) {
  const auto all = context.world().communicator().gather_objects(parts_text(source));
  for (size_t r = 1; r < all.size(); ++r) {
    if (all[r] == all[0]) continue;
    throw UsageError(fmt::format("{} of the ranks differ: rank 0 has {}, rank {} has {}: give all ranks the same data.",
                                 option, all[0], r, all[r]));
  }
}

}  // namespace

LoaderOptions loader_options(const World& world, const TrainOptions& o) {
  const int data_ranks = data_rank_count(o.engine, world.rank_count());
  return {.sequence = *o.sequence,
          .micro_batch = o.micro_batch,
          .vocabulary = *o.vocabulary,
          .shuffle = o.shuffle,
          .seed = static_cast<uint64_t>(o.data_seed),
          .rank = world.rank() / o.engine.tensor % data_ranks,
          .rank_count = data_ranks};
}

TrainData::TrainData(const World& world, const TrainOptions& options, const TokenSource& trained,
                     const TokenSource* evaluated)
    : train_source_(trained), eval_source_(evaluated), loader_(trained, loader_options(world, options)) {
  if (evaluated == nullptr) return;
  LoaderOptions in_order = loader_options(world, options);
  in_order.shuffle = false;
  eval_loader_.emplace(*evaluated, in_order);
}

std::map<std::string, Scalar> TrainData::scalars() const {
  std::map<std::string, Scalar> scalars{{"data_tokens", train_source_.token_count()}};
  const std::vector<TokenPart> parts = train_source_.parts();
  if (parts.size() == 1) return scalars;
  std::vector<int64_t> tokens;
  std::vector<double> weights;
  for (const TokenPart& part : parts) {
    tokens.push_back(part.count);
    weights.push_back(part.weight);
  }
  scalars["data_part_tokens"] = tokens;
  scalars["data_weights"] = weights;
  return scalars;
}

TokenBatch TrainData::batch(int64_t consumed, int64_t micro_batch, int data_coordinate) {
  loader_.load(consumed, micro_batch, data_coordinate);
  return loaded(loader_);
}

TokenBatch TrainData::eval_batch(int64_t index) {
  eval_loader_->load(0, index);
  return loaded(*eval_loader_);
}

void TrainData::check(const TrainContext& context) const {
  const bool is_stored = train_source_.token_bytes() > 0 || eval_source_ != nullptr;
  if (!is_stored) return;
  check_same_parts(context, train_source_, "--data");
  if (eval_source_ != nullptr) check_same_parts(context, *eval_source_, "--eval-data");
  std::string problem;
  std::exception_ptr own;
  try {
    check_part(context, train_source_);
    if (eval_source_ != nullptr) check_part(context, *eval_source_);
  } catch (const Error& error) {
    own = std::current_exception();
    problem = error.what();
  }
  for (const std::string& any : context.world().communicator().gather_objects(problem)) {
    if (any.empty()) continue;
    if (own) std::rethrow_exception(own);
    throw UsageError(any);
  }
}

}  // namespace aliquot
