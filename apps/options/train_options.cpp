#include "apps/options/train_options.h"

#include "apps/options/nearest.h"
#include "kernels/system/error.h"

namespace aliquot {
namespace {

constexpr WholeRange kFromZero{0, int64_t{1} << 62};
constexpr WholeRange kFromOne{1, int64_t{1} << 62};
constexpr WholeRange kExtent{1, int64_t{1} << 31};
constexpr RealRange kNotNegative{.least = 0};
constexpr RealRange kRate{.least = 0, .most = 1e29};  // the optimizers take less than 1e30

// 0.9,0.95
void set_betas(TrainOptions& options, std::string_view text) {
  const size_t comma = text.find(',');
  if (comma == std::string_view::npos) throw UsageError("give two numbers with a comma between, as in 0.9,0.95.");
  const RealRange range{0, 1};
  const double first = parse_real(text.substr(0, comma), range), second = parse_real(text.substr(comma + 1), range);
  if (first >= 1 || second >= 1) throw UsageError("a decay of 1 never forgets: give numbers below 1.");
  options.beta_1 = first;
  options.beta_2 = second;
}

void add_world(OptionTable& t, TrainOptions& o) {
  t.heading("Sharding");
  t.choice("zero-stage", o.zero_stage, {"0", "1", "2", "3"},
           "What is sharded: nothing, optimizer state, gradients too, parameters too.");
  t.count("ranks", o.ranks, {1, 4096},
          "Ranks as threads, when no launcher started us; default 1, with GPUs one per GPU.");
  t.choice("device", o.device, {"auto", "host", "cuda"}, "Where to compute.");
  t.choice("world", o.world, {"auto", "threads", "mpi", "nccl"}, "Over what ranks reach each other.");
  t.count("threads", o.threads, {1, 4096},
          "Host threads a rank computes with; default the node's cores / ranks on it.");
  t.count("replicas", o.replicas, {1, 1 << 20},
          "Hybrid sharding: groups of contiguous ranks, each holding one whole model.");
}

void add_model(OptionTable& t, TrainOptions& o) {
  t.heading("Model");
  add_shape_options(t, o);
  t.text(
      "init", "FILE|DIR", o.init,
      "Start from weights: safetensors in Hugging Face's naming with their config.json, or an Aliquot checkpoint. They "
      "define the model; --model and the options of its shape are needed only without a config.json.");
}

void add_data(OptionTable& t, TrainOptions& o) {
  t.heading("Data");
  t.text("data", "FILE", o.data,
         ".bin, .u16: unsigned 16-bit tokens; .u32: unsigned 32-bit tokens; .h5: the dataset 'tokens'; files of llm.c "
         "and .npy: "
         "as their headers say; any other: bytes as tokens. Compressed and other known formats are refused. Default: a "
         "built-in language that a model can learn.");
  t.choice("shuffle", o.shuffle, {"on", "off"}, "Take sequences in an order shuffled anew each epoch.");
  t.count("data-seed", o.data_seed, kFromZero, "What the shuffled order is drawn from.");
  t.text("eval-data", "FILE", o.eval_data, "Tokens for the validation loss.");
  t.count("eval-every", o.eval_every, kFromZero, "Steps between validations; 0 is never.");
  t.count("eval-batches", o.eval_batches, kFromOne, "Micro-batches a rank takes for one.");
  t.heading("Steps");
  t.count("steps", o.steps, kFromOne, "Steps in all, over all resumes; what schedules run to.");
  t.count("micro-batch", o.micro_batch, {1, 1 << 20}, "Sequences a rank computes at once.");
  t.count("accumulate", o.accumulate, {1, kMostMicroBatches}, "Micro-batches a step.");
  t.count("sequence", o.sequence, kExtent, "Tokens a sequence; default the context.");
  t.count("global-batch", o.global_batch, kFromOne, "Sequences a step over all ranks; fixes --accumulate.");
  t.count("stop-after", o.stop_after, kFromOne, "End this run at that step, saved.");
}

void add_optimizer(OptionTable& t, TrainOptions& o) {
  t.heading("Optimizer");
  t.choice("optimizer", o.optimizer, {"adamw", "adam", "adamw8bit", "lion", "sgd", "muon"}, "The update rule.");
  t.real("lr", o.lr, kRate, "The learning rate.");
  t.real("min-lr", o.min_lr, kRate, "The least it falls to.");
  t.add({"betas", "X,Y", "Decay of the first and second moment.", false,
         [&o](std::string_view text) { set_betas(o, text); },
         [&o] { return Json(exact_text(o.beta_1) + "," + exact_text(o.beta_2)); }});
  t.real("eps", o.eps, kRate, "Added to the root of the second moment.");
  t.real("weight-decay", o.weight_decay, kRate, "Decoupled; not of tensors with one dimension.");
  t.toggle("decay-all", o.decay_all, "Decay norms and biases too.");
  t.real("momentum", o.momentum, {0, 1}, "Of sgd, default 0.9, and of muon, default 0.95.");
  t.toggle("nesterov", o.nesterov, "Nesterov's momentum, for sgd, default off, and muon, default on.");
  t.real("muon-lr", o.muon_lr, kRate, "Muon's rate of matrices where --lr is the rest's; the schedule scales both.");
  t.choice("schedule", o.schedule, {"constant", "linear", "cosine", "wsd", "inverse-sqrt"},
           "How the rate falls from --lr to --min-lr at --steps.");
  t.count("warmup", o.warmup, kFromZero, "Steps in which the rate rises to --lr.");
  t.choice("warmup-shape", o.warmup_shape, {"linear", "log"}, "How it rises.");
  t.real("warmup-from", o.warmup_from, kRate, "What it rises from.");
  t.choice("scale-lr", o.scale_lr, {"none", "linear", "sqrt"}, "Scale the rate with the batch / --base-batch.");
  t.count("base-batch", o.base_batch, kFromOne, "The batch that --lr was chosen for.");
  t.real("clip", o.clip, kNotNegative, "The most the gradients' global norm may be; 0 is off.");
}

void add_precision(OptionTable& t, TrainOptions& o) {
  t.heading("Precision");
  const auto later = [&t](const char* name, std::string& value, std::vector<std::string> names, const char* meaning) {
    std::string hint;
    for (const std::string& choice : names) hint += (hint.empty() ? "" : "|") + choice;
    t.add({name, hint, meaning, false, [&value, names](std::string_view text) { value = parse_choice(text, names); },
           [&value] { return value.empty() ? Json() : Json(value); }});
  };
  later("precision", o.precision, {"fp32", "bf16", "fp16"},
        "What is computed in; default fp32 on hosts, bf16 on GPUs.");
  t.choice("gradients", o.gradients, {"fp32", "bf16"}, "What gradients are accumulated in.");
  later("reduce-precision", o.reduce_precision, {"fp32", "bf16"},
        "What gradients are sent in; default that of --gradients.");
  t.choice("master", o.master, {"split", "fp32"}, "How the fp32 master is kept beside bf16; the same bits either way.");
  t.choice("state", o.state, {"fp32", "bf16"}, "What optimizer moments are kept in.");
  later("accumulate-into", o.accumulate_into, {"full", "shard"},
        "Sum micro-batches unsharded or sharded; default full at stages 0 and 1, shard at 2 and 3.");
}

void add_memory(OptionTable& t, TrainOptions& o) {
  t.heading("Memory and overlap");
  t.count("prefetch", o.prefetch, {0, 1024}, "How many units ahead are gathered.");
  t.count("keep-gathered", o.keep_gathered, {0, 1 << 20}, "How many units stay whole after forward.");
  t.choice("gather", o.gather, {"auto", "view", "copy"}, "How one host's ranks see each other's shards.");
  t.bytes("memory-budget", o.memory_budget, "Fit this a rank, and choose what changes no result.");
  add_offload_options(t, o);
  t.choice("quantize", o.quantize, {"none", "weights", "gradients", "both"},
           "8-bit weights and gradients between nodes.");
  t.choice("recompute", o.recompute, {"auto", "none", "block"},
           "What runs forward again in backward and keeps nothing; auto: what --memory-budget needs.");
  t.toggle("update-in-backward", o.update_in_backward,
           "Update a unit as soon as its gradient is reduced; needs --clip 0.");
  t.toggle("reproducible", o.reproducible, "The same bits on any power-of-two number of ranks.");
}

void add_checkpoints(OptionTable& t, TrainOptions& o) {
  t.heading("Checkpoints");
  t.text("checkpoint-dir", "DIR", o.checkpoint_dir,
         "Where checkpoints are written; the last one at the end of the run.");
  t.count("checkpoint-every", o.checkpoint_every, kFromZero, "Steps between checkpoints; 0 is the last alone.");
  t.count("keep", o.keep, {0, 1 << 30}, "The newest that are kept; 0 is all.");
  t.choice("save", o.save, {"auto", "snapshot", "blocking"}, "Copy the shard and train on, or wait for the disk.");
  t.text("resume", "none|auto|PATH", o.resume, "auto: the newest valid checkpoint of --checkpoint-dir.");
  t.toggle("allow-missing", o.allow_missing, "Start with zeros where a checkpoint or --init lacks a tensor.");
}

void add_reports(OptionTable& t, TrainOptions& o) {
  t.heading("Reports");
  t.text("metrics", "FILE.jsonl", o.metrics, "One JSON object a step.");
  t.text("trace", "FILE.json", o.trace, "The operations of each lane and rank, for Perfetto.");
  t.toggle("quiet", o.quiet, "The digest, warnings and errors alone.");
  t.choice("progress", o.progress, {"auto", "bar", "lines", "none"}, "auto: a bar on a terminal, lines elsewhere.");
  t.count("stragglers-every", o.stragglers_every, kFromZero,
          "Steps between reports, in the metrics, of what each rank computed and waited; 0 is never.");
  t.real("straggler-threshold", o.straggler_threshold, {.least = 1},
         "How many times the median a rank may compute before it is named.");
  t.count("digest-every", o.digest_every, kFromZero, "Steps between digests in the metrics; 0 is never.");
  t.heading("Running");
  t.real("timeout", o.timeout_seconds, {.least = 0.001, .most = 1e9},
         "Seconds until a collective that waits is given up.");
  t.count("max-skipped", o.max_skipped, kFromOne, "Stop after so many steps in a row that were not finite.");
  t.real("skip-spikes", o.skip_spikes, {.least = 1},
         "Skip steps whose loss is so many standard deviations above the mean of those before; default never.");
  t.count("check-every", o.check_every, kFromZero,
          "Steps between comparisons of what several ranks hold of the same; 0 is never.");
  t.count("seed", o.seed, kFromZero, "What the first weights are drawn from.");
  t.toggle("dry-run", o.dry_run, "Print the options, the memory plan and the schedule; run nothing.");
  t.text("deepspeed", "FILE", o.deepspeed, "Take the settings of a DeepSpeed JSON configuration.");
  t.text("config", "FILE", o.config,
         "Options without dashes, 'name = value' a line, # comments; the command line wins.");
}

}  // namespace

OptionTable train_option_table(TrainOptions& options) {
  OptionTable table;
  add_world(table, options);
  add_model(table, options);
  add_data(table, options);
  add_optimizer(table, options);
  add_precision(table, options);
  add_memory(table, options);
  add_checkpoints(table, options);
  add_reports(table, options);
  return table;
}

}  // namespace aliquot
