// aliquot eval: prints the loss and the perplexity of a model on a file of tokens.
#include <algorithm>
#include <array>
#include <cmath>
#include <fmt/format.h>
#include <memory>
#include <optional>

#include "apps/commands.h"
#include "apps/console.h"
#include "apps/data/loader.h"
#include "apps/data/token_source.h"
#include "apps/inference/eval_options.h"
#include "apps/inference/inference_options.h"
#include "apps/inference/loaded_model.h"
#include "apps/train/launch.h"
#include "apps/train/reporting/progress.h"
#include "apps/train/train_data.h"
#include "apps/train/train_text.h"
#include "apps/train/wrap.h"
#include "kernels/system/error.h"
#include "kernels/system/seconds.h"
#include "sharding/launcher.h"

namespace aliquot {
namespace {

/// The default of --sequence is at most this long, because some models accept sequences that need much memory.
constexpr int64_t kLongestDefaultSequence = 1024;

/// The part of the data that is evaluated: `sequences` sequences. `targets` of their tokens count in the loss.
struct EvalExtent {
  int64_t sequences = 0, targets = 0;
};

EvalExtent extent_of(Loader& loader, const TokenSource& data, int64_t limit) {
  EvalExtent extent{.sequences = loader.sequence_count()};
  if (limit > 0) extent.sequences = std::min(extent.sequences, limit);
  extent.targets = loader.count_targets(0, extent.sequences);
  if (extent.targets > 0) return extent;
  throw UsageError(fmt::format("--data {}: none of the tokens counts in the loss.", data.describe()));
}

/// A bar on the terminal of rank 0 that shows how many batches are evaluated; nothing elsewhere.
class EvalProgress {
 public:
  EvalProgress(const TrainContext& context, int64_t batches, int64_t tokens_of_batch)
      : tokens_of_batch_(tokens_of_batch),
        bar_(context.is_rank_zero() && is_on_terminal(stdout) ? ProgressStyle::kBar : ProgressStyle::kNone,
             {0, batches, batches}, LogInterval::kAuto, stdout) {}
  EvalProgress(const EvalProgress&) = delete;
  EvalProgress& operator=(const EvalProgress&) = delete;
  ~EvalProgress() { bar_.finish(); }

  void show(int64_t batches_done) {
    const double now = now_seconds(), seconds = std::max(now - begin_seconds_, 1e-9);
    const double rate = static_cast<double>(batches_done * tokens_of_batch_) / seconds;
    bar_.show({.step = batches_done, .loss = std::nullopt, .tokens_per_second = rate}, now);
  }

 private:
  int64_t tokens_of_batch_;
  double begin_seconds_ = now_seconds();
  Progress bar_;
};

/// Returns the loss summed over this rank's part of the sequences. Every rank computes the same number of
/// micro-batches. If there are too few sequences to fill the last micro-batches, the targets of the other sequences in
/// them are ignored.
double own_loss_sum(const TrainContext& context, Loader& loader, const EvalExtent& extent) {
  const LoaderOptions at = loader_options(context.world(), context.options());
  Model& model = context.model();
  double sum = 0;
  const int64_t group = at.micro_batch * at.rank_count, batches = (extent.sequences + group - 1) / group;
  EvalProgress progress(context, batches, group * at.sequence);
  for (int64_t batch = 0; batch < batches; ++batch) {
    loader.load(0, batch);
    std::vector<int32_t> targets = loader.targets();
    const int64_t first = (batch * at.rank_count + at.rank) * at.micro_batch;
    const int64_t left = std::clamp<int64_t>(extent.sequences - first, 0, at.micro_batch);
    std::fill(targets.begin() + left * at.sequence, targets.end(), kIgnoredTarget);
    model.set_batch({loader.tokens(), targets});
    run_evaluation(context.engine(), model);
    if (context.has_loss()) sum += model.loss_sum();
    progress.show(batch + 1);
  }
  return sum;
}

void print_result(const TrainOptions& options, const TokenSource& data, const EvalExtent& extent, double loss) {
  const int64_t tokens = extent.sequences * *options.sequence;
  write_stdout("{}: {} sequence{} of {} tokens\n", data.describe(), extent.sequences, extent.sequences == 1 ? "" : "s",
               *options.sequence);
  if (extent.targets < tokens)
    write_stdout("the loss of {} tokens counts, that of {} does not\n", extent.targets, tokens - extent.targets);
  write_stdout("loss {:.6f}, perplexity {:.4f}, over {} tokens\n", loss, std::exp(loss), extent.targets);
}

ExitCode evaluate_on_rank(World& world, const TrainOptions& options, const TokenSource& data, int64_t limit) {
  const TrainContext context(world, options);
  TrainData(world, options, data, nullptr).check(context);
  LoaderOptions in_order = loader_options(world, options);
  in_order.shuffle = false;
  Loader loader(data, in_order);
  const EvalExtent extent = extent_of(loader, data, limit);
  materialize_weights(context);
  std::array sum{own_loss_sum(context, loader, extent)};
  context.sum_losses(sum, {"evaluation loss", 0});
  if (context.is_rank_zero()) print_result(options, data, extent, sum[0] / static_cast<double>(extent.targets));
  return ExitCode::kDone;
}

}  // namespace

CommandHelp eval_help() {
  EvalOptions options;
  return {
      .name = "eval",
      .summary = "print the loss and perplexity of a model on tokens",
      .usage = "PATH --data FILE [--option value ...]",
      .text =
          "  aliquot eval runs/nano --data valid.h5          the newest checkpoint of a run\n"
          "  aliquot eval hf --data valid.h5 --ranks 2       Hugging Face weights, sharded over 2 ranks\n\n"
          "Reads the tokens in their order, in sequences of --sequence tokens. Tokens at the end that do not fill a "
          "sequence are not used. The loss is the mean over the tokens whose loss counts. The perplexity is its "
          "exponential.",
      .options = help_options(eval_option_table(options)),
      .subcommands = {},
      .exit_codes = {0, 1, 2, 3, 5, 137}};
}

int run_eval(const Arguments& arguments) {
  EvalOptions options = parse_eval_arguments(arguments);
  TrainOptions& run = options.run;
  set_weights(run, options.path, options.path, options.base);
  if (!run.sequence) run.sequence = std::min(model_shape(run).context, kLongestDefaultSequence);
  const std::unique_ptr<TokenSource> data = open_token_source(run.data);
  if (launched_rank() == 0) {
    if (const std::string warning = tokenizer_warning(*data, options.path); !warning.empty()) warn("{}", warning);
  }
  return static_cast<int>(run_on_ranks(run, [&](World& world, const TrainOptions& resolved) {
    return evaluate_on_rank(world, resolved, *data, options.sequences);
  }));
}

}  // namespace aliquot
