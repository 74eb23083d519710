#include "apps/options/train_options.h"

namespace aliquot {
namespace {

constexpr IntegerRange kNonNegative{0, int64_t{1} << 62};
constexpr IntegerRange kPositive{1, int64_t{1} << 62};
constexpr IntegerRange kExtentRange{1, int64_t{1} << 31};
constexpr RealRange kLrRange{.least = 0, .most = 1e29};  // the optimizers take less than 1e30

void add_world(OptionTable& t, TrainOptions& o, const OptionTable& common) {
  t.heading("Sharding");
  t.add(common, {"zero-stage"});
  t.count("ranks", o.ranks, {1, 4096},
          "Ranks as threads, when no launcher started us; default 1, with GPUs one per GPU.");
  t.add(common, {"device", "world", "threads", "replicas"});
}

void add_model(OptionTable& t, TrainOptions& o) {
  t.heading("Model");
  add_shape_options(t, o);
  t.text(
      "init", "FILE|DIR", o.init,
      "Start from weights: safetensors in Hugging Face's naming with their config.json, or an Aliquot checkpoint. They "
      "define the model; --model and the options of its shape are needed only without a config.json.");
}

void add_data(OptionTable& t, TrainOptions& o, const OptionTable& common) {
  t.heading("Data");
  t.text("data", "FILE", o.data,
         ".bin, .u16: unsigned 16-bit tokens; .u32: unsigned 32-bit tokens; .h5: the dataset 'tokens'; files of llm.c "
         "and .npy: "
         "as their headers say; any other: bytes as tokens. Compressed and other known formats are refused. Default: a "
         "built-in language that a model can learn.");
  t.choice("shuffle", o.shuffle, kShuffleWords, "Take sequences in an order shuffled anew each epoch.");
  t.count("data-seed", o.data_seed, kNonNegative, "What the shuffled order is drawn from.");
  t.text("eval-data", "FILE", o.eval_data, "Tokens for the validation loss.");
  t.count("eval-every", o.eval_every, kNonNegative, "Steps between validations; 0 is never.");
  t.count("eval-batches", o.eval_batches, kPositive, "Micro-batches a rank takes for one.");
  t.heading("Steps");
  t.count("steps", o.steps, kPositive, "Steps in all, over all resumes; what schedules run to.");
  t.count("micro-batch", o.micro_batch, {1, 1 << 20}, "Sequences a rank computes at once.");
  t.add(common, {"accumulate"});
  t.count("sequence", o.sequence, kExtentRange, "Tokens a sequence; default the context.");
  t.count("global-batch", o.global_batch, kPositive, "Sequences a step over all ranks; fixes --accumulate.");
  t.count("stop-after", o.stop_after, kPositive, "End this run at that step, saved.");
}

void add_optimizer(OptionTable& t, TrainOptions& o, const OptionTable& common) {
  t.heading("Optimizer");
  t.add(common, {"optimizer", "lr"});
  t.real("min-lr", o.min_lr, kLrRange, "The least it falls to.");
  t.add(common, {"betas", "eps", "weight-decay"});
  t.toggle("decay-all", o.decay_all, "Decay norms and biases too.");
  t.add(common, {"momentum", "nesterov", "muon-lr"});
  t.choice("schedule", o.schedule, kScheduleWords, "How the rate falls from --lr to --min-lr at --steps.");
  t.count("warmup", o.warmup, kNonNegative, "Steps in which the rate rises to --lr.");
  t.choice("warmup-shape", o.warmup_shape, kWarmupWords, "How it rises.");
  t.real("warmup-from", o.warmup_from, kLrRange, "What it rises from.");
  t.choice("scale-lr", o.scale_lr, kScalingWords, "Scale the rate with the batch / --base-batch.");
  t.count("base-batch", o.base_batch, kPositive, "The batch that --lr was chosen for.");
  t.add(common, {"clip"});
}

void add_precision_and_memory(OptionTable& t, const OptionTable& common) {
  t.heading("Precision");
  t.add(common, {"precision", "gradients", "reduce-precision", "master", "state", "accumulate-into"});
  t.heading("Memory and overlap");
  t.add(common, {"prefetch", "keep-gathered", "gather", "memory-budget", "offload", "offload-parameters", "quantize",
                 "recompute", "update-in-backward", "reproducible"});
}

void add_checkpoints(OptionTable& t, TrainOptions& o) {
  t.heading("Checkpoints");
  t.text("checkpoint-dir", "DIR", o.checkpoint_dir,
         "Where checkpoints are written; the last one at the end of the run.");
  t.count("checkpoint-every", o.checkpoint_every, kNonNegative, "Steps between checkpoints; 0 is the last alone.");
  t.count("keep", o.keep, {0, 1 << 30}, "The newest that are kept; 0 is all.");
  t.choice("save", o.save, {"auto", "snapshot", "blocking"}, "Copy the shard and train on, or wait for the disk.");
  t.text("resume", "none|auto|PATH", o.resume, "auto: the newest valid checkpoint of --checkpoint-dir.");
  t.toggle("allow-missing", o.allow_missing, "Start with zeros where a checkpoint or --init lacks a tensor.");
}

void add_reports(OptionTable& t, TrainOptions& o, const OptionTable& common) {
  t.heading("Reports");
  t.text("metrics", "FILE.jsonl", o.metrics, "One JSON object a step.");
  t.text("trace", "FILE.json", o.trace, "The operations of each lane and rank, for Perfetto.");
  t.toggle("quiet", o.quiet, "The digest, warnings and errors alone.");
  t.choice("progress", o.progress, {"auto", "bar", "lines", "none"}, "auto: a bar on a terminal, lines elsewhere.");
  t.count("stragglers-every", o.stragglers_every, kNonNegative,
          "Steps between reports, in the metrics, of what each rank computed and waited; 0 is never.");
  t.real("straggler-threshold", o.straggler_threshold, {.least = 1},
         "How many times the median a rank may compute before it is named.");
  t.count("digest-every", o.digest_every, kNonNegative, "Steps between digests in the metrics; 0 is never.");
  t.heading("Running");
  t.add(common, {"timeout", "max-skipped"});
  t.real("skip-spikes", o.skip_spikes, {.least = 1},
         "Skip steps whose loss is so many standard deviations above the mean of those before; default never.");
  t.count("check-every", o.check_every, kNonNegative,
          "Steps between comparisons of what several ranks hold of the same; 0 is never.");
  t.add(common, {"seed"});
  t.toggle("dry-run", o.dry_run, "Print the options, the memory plan and the schedule; run nothing.");
  t.text("deepspeed", "FILE", o.deepspeed, "Take the settings of a DeepSpeed JSON configuration.");
  t.text("config", "FILE", o.config,
         "Options without dashes, 'name = value' a line, # comments; the command line wins.");
}

}  // namespace

TrainOptions::TrainOptions() {
  optimizer = {.lr = 3e-4, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1, .muon_lr = 0.02};
  engine.max_skipped = 10;
}

OptionTable train_option_table(TrainOptions& options) {
  const OptionTable common = common_option_table(options);
  OptionTable table;
  add_world(table, options, common);
  add_model(table, options);
  add_data(table, options, common);
  add_optimizer(table, options, common);
  add_precision_and_memory(table, common);
  add_checkpoints(table, options);
  add_reports(table, options, common);
  return table;
}

std::string option_text(TrainOptions options, std::string_view name) {
  return text_of(train_option_table(options).find(name)->get());
}

}  // namespace aliquot
