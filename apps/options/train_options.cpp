#include "apps/options/train_options.h"

#include "apps/options/arguments.h"
#include "apps/options/pipeline_order.h"
#include "apps/options/products_option.h"

namespace aliquot {
namespace {

constexpr IntegerRange kNonNegative{0, int64_t{1} << 62};
constexpr IntegerRange kPositive{1, int64_t{1} << 62};
constexpr IntegerRange kExtentRange{1, int64_t{1} << 31};
constexpr RealRange kLrRange{.least = 0, .most = 1e29};  // the optimizers require less than 1e30

void add_world(OptionTable& t, TrainOptions& o, const OptionTable& common) {
  t.heading("Sharding");
  t.add(common, {"zero-stage"});
  t.count("ranks", o.ranks, {1, 4096},
          "Number of ranks (threads of this process) without a launcher; default: one per GPU, or 1 without a GPU.");
  t.add(common,
        {"device", "world", "threads", "replicas", "pipeline", "pipeline-schedule", "virtual-stages", "pipeline-cut"});
  add_pipeline_order_from(t, o.pipeline_order_from, o.engine.pass_order);
  t.add(common, {"tensor"});
  add_mesh(t, o.mesh);
  add_sequence_parallel(t, o);
  t.text("machine", "host|dgx-a100|dgx-h100|dgx-h200|FILE", o.machine,
         "Choose mesh, pipeline cut, schedule and plan within --memory-budget by the rates of a named machine, or of "
         "a JSON file from aliquot doctor --measure.");
  t.text("profile", "FILE", o.profile,
         "Choose them by measured times of forward and backward, from the --metrics file of a run on one rank.");
}

void add_model(OptionTable& t, TrainOptions& o) {
  t.heading("Model");
  add_shape_options(t, o);
  t.text(
      "init", "FILE|DIR", o.init,
      "Start from these weights: safetensors with Hugging Face names and a config.json, or an Aliquot checkpoint. They "
      "define the model; --model and shape options are needed only without a config.json.");
}

void add_data(OptionTable& t, TrainOptions& o, const OptionTable& common) {
  t.heading("Data");
  t.text("data", "FILE|LIST", o.data,
         ".bin, .u16: unsigned 16-bit tokens; .u32: unsigned 32-bit tokens; .h5: the dataset 'tokens'; llm.c files and "
         ".npy: the type in their header; any other file: each byte is a token. Compressed and other known formats are "
         "rejected. Several files with weights: a.h5:0.7,b.h5:0.3. Default: a built-in synthetic language.");
  t.choice("shuffle", o.shuffle, kShuffleWords, "Read sequences in a random order, which differs in each epoch.");
  t.count("data-seed", o.data_seed, kNonNegative, "Seed of the random order.");
  t.text("eval-data", "FILE|LIST", o.eval_data,
         "Tokens for the validation loss, as in --data. Several files: sequences are taken by weight.");
  t.count("eval-every", o.eval_every, kNonNegative,
          "Steps between validations; 0: only after the last step. The last step always has one.");
  t.count("eval-batches", o.eval_batches, kPositive, "Micro-batches per rank in each validation.");
  t.count("sample-every", o.sample_every, kNonNegative, "Steps between samples of text; 0 means no samples.");
  t.text("sample-prompt", "TEXT", o.sample_prompt, "The beginning of each sample, which the model continues.");
  t.count("sample-tokens", o.sample_tokens, kPositive, "The largest number of tokens of a sample after its prompt.");
  t.real("sample-temperature", o.sample_temperature, {.least = 0, .most = 1e6},
         "Divides the logits of samples; 0: always the most probable token.");
  t.text("tokenizer", "FILE", o.tokenizer,
         "The tokenizer.json of the data, for samples. The directory of checkpoints gets a copy. Default: the one that "
         "--data or --init contains.");
  t.heading("Steps");
  t.count("steps", o.steps, kPositive,
          "Total number of steps, including those before a resume. --schedule ends at the last one.");
  t.count("micro-batch", o.micro_batch, {1, 1 << 20}, "Sequences that a rank computes at once.");
  t.add(common, {"accumulate"});
  t.count("sequence", o.sequence, kExtentRange, "Tokens per sequence; default: the model's context.");
  t.count("global-batch", o.global_batch, kPositive, "Sequences per step over all ranks; determines --accumulate.");
  t.count("stop-after", o.stop_after, kPositive, "Save a checkpoint and end this run after step N.");
}

void add_optimizer(OptionTable& t, TrainOptions& o, const OptionTable& common) {
  t.heading("Optimizer");
  t.add(common, {"optimizer", "lr"});
  t.real("min-lr", o.min_lr, kLrRange, "Minimum learning rate of --schedule.");
  t.add(common, {"betas", "eps", "weight-decay"});
  t.toggle("decay-all", o.decay_all, "Apply weight decay to norms and biases too.");
  t.add(common, {"momentum", "nesterov", "muon-lr", "muon-products"});
  t.choice("schedule", o.schedule, kScheduleWords,
           "How the learning rate falls from --lr towards --min-lr over --steps.");
  t.count("warmup", o.warmup, kNonNegative, "Steps in which the learning rate rises to --lr.");
  t.choice("warmup-shape", o.warmup_shape, kWarmupWords, "Shape of the warm-up.");
  t.real("warmup-from", o.warmup_from, kLrRange, "Learning rate at the start of the warm-up.");
  t.choice("scale-lr", o.scale_lr, kScalingWords, "Scale learning rates by the ratio global batch / --base-batch.");
  t.count("base-batch", o.base_batch, kPositive, "Global batch for which --lr was chosen.");
  t.add(common, {"clip"});
}

void add_precision_and_memory(OptionTable& t, TrainOptions& o, const OptionTable& common) {
  t.heading("Precision");
  t.add(common, {"precision"});
  add_products(t, o.products);
  add_attention(t, o);
  t.add(common, {"gradients", "reduce-precision", "master", "state", "accumulate-into"});
  t.heading("Memory and overlap");
  t.add(common, {"prefetch", "keep-gathered", "gather-for", "gather", "memory-budget", "offload", "offload-parameters",
                 "quantize", "recompute", "update-in-backward", "reproducible"});
  t.add(common, {"nccl-gather-communicator", "nccl-copy-engines", "nccl-channels", "nccl-staging"});
}

void add_checkpoints(OptionTable& t, TrainOptions& o) {
  t.heading("Checkpoints");
  t.text("checkpoint-dir", "DIR", o.checkpoint_dir, "Directory for checkpoints; the last step is always saved.");
  t.count("checkpoint-every", o.checkpoint_every, kNonNegative, "Steps between checkpoints; 0 saves only at the end.");
  t.count("keep", o.keep, {0, 1 << 30}, "Number of newest checkpoints to keep; 0 keeps all.");
  t.choice("save", o.save, {"auto", "snapshot", "blocking"},
           "snapshot: copy the shard and write it while training continues; blocking: wait for the disk.");
  t.text("resume", "none|auto|PATH", o.resume,
         "Checkpoint to continue from; auto: the newest valid one in --checkpoint-dir, if any.");
  t.toggle("allow-missing", o.allow_missing,
           "Start tensors as zeros if the checkpoint or weights lack them, instead of reporting an error.");
}

void add_log_every(OptionTable& t, int64_t& steps) {
  t.add({"log-every", "N|auto",
         "Steps between lines of progress; auto: the first ten steps, then about 100 lines in all, and at least one "
         "every ten seconds.",
         false, [&steps](std::string_view text) { steps = text == "auto" ? 0 : parse_count(text, kPositive); },
         [&steps]() -> OptionValue { return steps == 0 ? "auto" : std::to_string(steps); }});
}

void add_reports(OptionTable& t, TrainOptions& o, const OptionTable& common) {
  t.heading("Reports");
  t.text("metrics", "FILE.jsonl", o.metrics, "Write one JSON object per step.");
  t.count("metrics-every", o.metrics_every, kPositive,
          "Steps between lines of --metrics; steps with a validation or a digest always have a line.");
  t.text("trace", "FILE.json", o.trace, "Write the times of all operations on each lane of each rank, for Perfetto.");
  t.toggle("quiet", o.quiet, "Print only the digest, warnings and errors.");
  t.choice("progress", o.progress, {"auto", "bar", "lines", "none"}, "auto: a bar on a terminal, lines elsewhere.");
  add_log_every(t, o.log_every);
  t.count("stragglers-every", o.stragglers_every, kNonNegative,
          "Steps between records of each rank's compute and waiting time in the metrics; 0 means no records.");
  t.real("straggler-threshold", o.straggler_threshold, {.least = 1},
         "Warn of a rank whose compute time exceeds the median by this factor.");
  t.count("digest-every", o.digest_every, kNonNegative, "Steps between digests in the metrics; 0 means no digests.");
  t.heading("Running");
  t.add(common, {"timeout", "max-skipped"});
  t.real("skip-spikes", o.skip_spikes, {.least = 1},
         "Skip steps whose loss is this many standard deviations above the mean of earlier steps; default: never.");
  t.count("check-every", o.check_every, kNonNegative,
          "Steps between checks that all copies of the same state are equal on the ranks; 0 means no checks.");
  t.add(common, {"check-state", "replay-every", "graph", "seed"});
  t.toggle("dry-run", o.dry_run, "Print the options, the memory plan and the schedule; run nothing.");
  t.text("deepspeed", "FILE", o.deepspeed, "Read settings from a DeepSpeed JSON configuration.");
  add_config(t, o.config);
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
  add_precision_and_memory(table, options, common);
  add_checkpoints(table, options);
  add_reports(table, options, common);
  return table;
}

std::string option_text(TrainOptions options, std::string_view name) {
  return text_of(train_option_table(options).find(name)->get());
}

}  // namespace aliquot
