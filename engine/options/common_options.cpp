#include "engine/options/common_options.h"

#include <array>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <limits>

#include "engine/options/enum_names.h"
#include "engine/options/nearest.h"
#include "kernels/system/error.h"

namespace aliquot {
namespace {

constexpr IntegerRange kUses{0, 1 << 20};
constexpr RealRange kRate{.least = 0, .most = 1e29};  // RealRange includes `most`, but optimizers reject 1e30
constexpr RealRange kBelowOne{.least = 0, .most = 1, .below_most = true};
constexpr std::string_view kDisk = "disk:";

/// Adds an option that needs its own functions to set and to get the value.
void add(OptionTable& t, const char* name, std::string hint, const char* meaning, auto set, auto get) {
  t.add({name, std::move(hint), meaning, false, std::move(set), std::move(get)});
}

void add_nccl(OptionTable& t, NcclOptions& o) {
  t.count("nccl-channels", o.channels, {0, 64},
          "Number of thread blocks that NCCL uses for a collective; 0: NCCL decides.");
  t.toggle("nccl-copy-engines", o.copy_engines,
           "NCCL gathers with copy engines, so that kernels can use all multiprocessors; needs NVLink.");
  t.toggle("nccl-gather-communicator", o.gather_communicator,
           "Gathers have their own NCCL communicator and do not wait for reduces; off saves memory of the GPU.");
  add(
      t, "nccl-staging", "BYTES",
      "Maximum memory in which a rank adds data that NCCL does not add: 16-bit data, or all data with --reproducible.",
      [&o](std::string_view text) { o.staging_bytes = parse_bytes(text); },
      [&o]() -> OptionValue {
        const int64_t mib = o.staging_bytes >> 20;
        return mib << 20 == o.staging_bytes ? fmt::format("{}MiB", mib) : std::to_string(o.staging_bytes);
      });
}

void add_world(OptionTable& t, WorldOptions& o) {
  t.choice("device", o.device, kDeviceWords, "Device to compute on; auto: a GPU if there is one.");
  t.choice("world", o.kind, kWorldWords,
           "How ranks communicate; auto: MPI under a launcher, else threads; NCCL if each rank has its own GPU.");
  add(
      t, "threads", "N", "Compute threads per rank on hosts; default: cores of the node divided by its ranks.",
      [&o](std::string_view text) {
        o.threads_per_rank = static_cast<int>(parse_count(text, {1, 4096}));
      },
      [&o] { return o.threads_per_rank == 0 ? OptionValue() : OptionValue(int64_t{o.threads_per_rank}); });
  t.real("timeout", o.timeout_seconds, {.least = 0.001, .most = 1e9},
         "Seconds after which a rank that waits for another one reports a failure.");
  add_nccl(t, o.nccl);
}

void add_offload(OptionTable& t, const char* name, Offload& kind, std::string& directory, const char* meaning) {
  const auto set = [&kind, &directory](std::string_view text) {
    if (text == kDisk) throw UsageError("invalid value 'disk:': expected a directory, for example disk:/scratch.");
    const bool on_disk = text.starts_with(kDisk) && text != enum_name(kOffloadWords, Offload::kDisk);
    const Offload given = on_disk ? Offload::kDisk : parse_enum<Offload>(text, kOffloadWords);
    if (given == Offload::kDisk && !on_disk)
      throw UsageError("invalid value 'disk:DIR': replace DIR by a directory, for example disk:/scratch.");
    kind = given;
    directory = on_disk ? text.substr(kDisk.size()) : std::string_view();
  };
  add(t, name, joined(names_of<Offload>(kOffloadWords)), meaning, set, [&kind, &directory]() -> OptionValue {
    return kind == Offload::kDisk ? std::string(kDisk) + directory : std::string(enum_name(kOffloadWords, kind));
  });
}

void add_recompute(OptionTable& t, int& count) {
  static const std::vector<std::string> words = {"auto", "none", "block"};
  const auto set = [&count](std::string_view text) {
    const bool is_number = !text.empty() && text.find_first_not_of("0123456789") == std::string_view::npos;
    const auto named = recompute_count(text);
    if (!is_number && !named)
      throw UsageError(fmt::format("invalid value '{}': expected auto, none, block or a number of uses.{}", text,
                                   did_you_mean(std::string(text), words, "")));
    count = is_number ? static_cast<int>(parse_count(text, {0, std::numeric_limits<int>::max()})) : *named;
  };
  const auto get = [&count]() -> OptionValue {
    for (const std::string& word : words) {
      if (recompute_count(word) == count) return word;
    }
    return std::to_string(count);
  };
  add(t, "recompute", joined(words) + "|N",
      "Blocks that recompute activations in backward instead of saving them: none, all blocks (block) or the first N "
      "of each pipeline stage; auto: as few as --memory-budget requires.",
      set, get);
}

void add_gather_for(OptionTable& t, int& micro_batches) {
  struct Word {
    const char* text;
    int value;
  };
  static constexpr Word kWords[] = {{"auto", kGatherForAuto}, {"pass", kGatherForPass}, {"step", kGatherForStep}};
  static const std::vector<std::string> words = {"auto", "pass", "step"};
  const auto set = [&micro_batches](std::string_view text) {
    for (const Word& word : kWords) {
      if (text == word.text) return static_cast<void>(micro_batches = word.value);
    }
    if (text.empty() || text.front() < '0' || text.front() > '9')
      throw UsageError(fmt::format("invalid value '{}': expected auto, pass, step or a number of micro-batches.{}",
                                   text, did_you_mean(std::string(text), words, "")));
    micro_batches = static_cast<int>(parse_count(text, {1, kMaxMicroBatches}));
  };
  const auto get = [&micro_batches]() -> OptionValue {
    for (const Word& word : kWords) {
      if (micro_batches == word.value) return std::string(word.text);
    }
    return std::to_string(micro_batches);
  };
  add(t, "gather-for", joined(words) + "|N",
      "How long units stay gathered at ZeRO stage 3: one pass, the whole step, or the passes of N micro-batches; auto: "
      "the fastest that --memory-budget allows, else pass.",
      set, get);
}

void add_replay_every(OptionTable& t, int& every) {
  constexpr std::string_view kAuto = "auto";
  const auto set = [&every, kAuto](std::string_view text) {
    if (text != kAuto && (text.empty() || text.front() < '0' || text.front() > '9'))
      throw UsageError(fmt::format("invalid value '{}': expected auto or a number of steps; 0: never.{}", text,
                                   did_you_mean(std::string(text), {std::string(kAuto)}, "")));
    every = text == kAuto ? kReplayAuto : static_cast<int>(parse_count(text, {0, std::numeric_limits<int>::max()}));
  };
  const auto get = [&every, kAuto]() -> OptionValue {
    return every == kReplayAuto ? std::string(kAuto) : std::to_string(every);
  };
  add(t, "replay-every", "auto|N",
      "Every N steps, each data-parallel rank computes a micro-batch and sums of other ranks again, to find ranks that "
      "compute wrong results. auto chooses N so that this takes at most 2 % of the time.",
      set, get);
}

/// Adds the option accumulate-into. If it is "auto", the default, its OptionValue is empty.
void add_accumulate_into(OptionTable& t, AccumulateInto& into) {
  constexpr EnumNames<AccumulateInto> kAll = kAccumulateIntoWords;
  const auto set = [&into, kAll](std::string_view text) { into = parse_enum(text, kAll); };
  add(t, "accumulate-into", joined(names_of(kAll)),
      "Sum micro-batches in full gradients or in shards; default auto: full at ZeRO stages 0 and 1, shard at 2 and 3.",
      set, [&into, kAll] {
        return into == AccumulateInto::kAuto ? OptionValue() : OptionValue(std::string(enum_name(kAll, into)));
      });
}

void add_quantize(OptionTable& t, bool& weights, bool& gradients) {
  const auto set = [&weights, &gradients](std::string_view text) {
    const auto chosen = parse_enum<Quantized>(text, kQuantizeWords);
    weights = chosen.weights;
    gradients = chosen.gradients;
  };
  add(t, "quantize", joined(names_of<Quantized>(kQuantizeWords)),
      "What is sent in 8 bits: weights (in gathers, ZeRO stage 3), gradients (between nodes), both or none.", set,
      [&weights, &gradients]() -> OptionValue {
        return std::string(enum_name(kQuantizeWords, Quantized{weights, gradients}));
      });
}

/// Adds the option pipeline-cut. By default, the cut is empty. The OptionValue of an empty cut is empty too.
void add_pipeline_cut(OptionTable& t, std::vector<int>& cut) {
  const auto set = [&cut](std::string_view text) {
    std::vector<int> counts;
    for (std::string_view rest = text; !rest.empty() || counts.empty();) {
      const auto end = std::min(rest.find(','), rest.size());
      counts.push_back(static_cast<int>(parse_count(rest.substr(0, end), {1, kUses.most})));
      if (end + 1 == rest.size()) throw UsageError(fmt::format("invalid value '{}': it ends with a comma.", text));
      rest.remove_prefix(std::min(end + 1, rest.size()));
    }
    cut = std::move(counts);
  };
  add(t, "pipeline-cut", "N,N,...",
      "Number of consecutive uses of each virtual stage, in order; default: a cut with about equal times.", set,
      [&cut] { return cut.empty() ? OptionValue() : OptionValue(fmt::format("{}", fmt::join(cut, ","))); });
}

void add_schedule(OptionTable& t, EngineOptions& o) {
  t.choice("zero-stage", o.zero_stage, kStageWords,
           "What is sharded: 0 nothing, 1 optimizer state, 2 gradients too, 3 parameters too.");
  t.count("replicas", o.replicas, {1, 1 << 20},
          "Hybrid sharding: number of copies of the model, each sharded over a group of contiguous ranks.");
  t.count("pipeline", o.pipeline, {1, 1 << 16},
          "Number of pipeline stages; each runs a part of the model, with an equal number of contiguous ranks.");
  t.choice(
      "pipeline-schedule", o.pipeline_schedule, kPipelineScheduleWords,
      "Order of passes: all forward passes first (gpipe), alternately forward and backward (1f1b), 1f1b with "
      "several virtual stages (interleaved), 1f1b with backward passes in two parts (zero-bubble), or the fastest of "
      "these that fits, by simulation (auto).");
  t.count(
      "virtual-stages", o.virtual_stages, {0, 1 << 16},
      "Number of virtual stages of each pipeline stage, with interleaved, auto or an order from a file; 0: as in the "
      "file, 2 with interleaved, or chosen with auto, otherwise 1.");
  add_pipeline_cut(t, o.pipeline_cut);
  t.count("tensor", o.tensor, {1, 1 << 16},
          "Number of ranks of a tensor group: contiguous ranks that divide each layer and read the same data.");
  t.count("accumulate", o.accumulate, {1, kMaxMicroBatches}, "Micro-batches per step.");
  add_accumulate_into(t, o.accumulate_into);
  t.count("prefetch", o.prefetch, kUses, "How far gathers run ahead of compute, at ZeRO stage 3, as a number of uses.");
  t.count("keep-gathered", o.keep_gathered, kUses,
          "Number of uses at the end of forward whose units stay gathered for backward, at ZeRO stage 3.");
  add_gather_for(t, o.gather_for);
  add_recompute(t, o.recompute);
  t.choice("gather", o.gather, kGatherWords,
           "How ranks gather shards at ZeRO stage 3: copy them, or view them in shared memory (one host or GPU); auto: "
           "view if possible.");
  add_offload(t, "offload", o.offload_state, o.offload_state_to,
              "Where optimizer state is stored between updates: the device (none), host memory, or files in DIR.");
  add_offload(t, "offload-parameters", o.offload_parameters, o.offload_parameters_to,
              "Where parameter shards are stored between uses, at ZeRO stage 3.");
  t.toggle("update-in-backward", o.update_in_backward,
           "Update a unit as soon as its gradient is reduced; requires --clip 0.");
  t.toggle("reproducible", o.reproducible,
           "Give the same bits on every mesh of up to 8 ranks in a tensor group and powers of two, with the same "
           "--global-batch.");
  add_quantize(t, o.quantize_weights, o.quantize_gradients);
  t.count("max-skipped", o.max_skipped, {0, std::numeric_limits<int>::max()},
          "Stop after N skipped steps in a row; a step is skipped if a gradient is not finite.");
  t.toggle("check-state", o.check_state,
           "Find bits of parameters and optimizer state that change between updates, by digests of their blocks.");
  add_replay_every(t, o.replay_every);
  t.choice(
      "graph", o.graph, kGraphWords,
      "Capture forward and backward once and repeat them as a CUDA graph, to save CPU time; auto: only with one rank.");
  t.toggle("check", o.check,
           "Detect writes outside of parameters and activations, and accesses outside of scopes; slower.");
}

void add_precision(OptionTable& t, CommonOptions& o) {
  Precision& precision = o.engine.precision;
  t.choice("precision", o.precision, kComputeWords,
           "Type of parameters in compute; default: fp32 on hosts, bf16 on GPUs.");
  t.choice("gradients", precision.gradients, kGradientWords, "Type in which gradients are accumulated.");
  t.choice("reduce-precision", precision.reduce, kGradientWords,
           "Type in which ranks send gradients; default: that of --gradients.");
  t.choice("master", precision.master, kMasterWords,
           "Master values of bf16 parameters: only the 16 missing bits (split) or fp32; results are the same.");
  t.choice("state", o.engine.moments, kGradientWords, "Type of optimizer moments.");
}

void add_betas(OptionTable& t, OptimizerOptions& o) {
  const auto set = [&o](std::string_view text) {
    const size_t comma = text.find(',');
    if (comma == std::string_view::npos)
      throw UsageError("invalid value '" + std::string(text) + "': expected two numbers, for example 0.9,0.95.");
    const double first = parse_real(text.substr(0, comma), kBelowOne);
    o.beta2 = parse_real(text.substr(comma + 1), kBelowOne);
    o.beta1 = first;
  };
  add(t, "betas", "X,Y", "Decay rates of the first and second moments.", set, [&o] {
    return o.beta1 && o.beta2 ? OptionValue(exact_text(*o.beta1) + "," + exact_text(*o.beta2)) : OptionValue();
  });
}

/// Accepts any 64-bit number, because programs generate seeds.
void add_seed(OptionTable& t, uint64_t& seed) {
  const auto set = [&seed](std::string_view text) { seed = parse_seed(text); };
  add(t, "seed", "N", "Seed of the initial weights and of stochastic rounding.", set,
      [&seed]() -> OptionValue { return seed; });
}

void add_optimizer(OptionTable& t, CommonOptions& o) {
  t.choice("optimizer", o.optimizer.kind, kOptimizerWords, "The optimizer.");
  t.real("lr", o.optimizer.lr, kRate, "The learning rate.");
  add_betas(t, o.optimizer);
  t.real("eps", o.optimizer.eps, kRate, "Added to the square root of the second moment.");
  t.real("weight-decay", o.optimizer.weight_decay, kRate,
         "Decoupled weight decay; tensors with one dimension are not decayed.");
  t.real("momentum", o.optimizer.momentum, kBelowOne, "Momentum of sgd (default 0.9) and muon (default 0.95).");
  t.toggle("nesterov", o.optimizer.nesterov, "Nesterov momentum for sgd (default off) and muon (default on).");
  t.real("muon-lr", o.optimizer.muon_lr, kRate,
         "Learning rate of matrices with muon; --lr applies to other parameters. --schedule scales both.");
  t.choice("muon-products", o.optimizer.muon_products, kGradientWords,
           "Type of matrix products with muon (default fp32); bf16 uses the tensor cores of GPUs.");
  t.real("clip", o.engine.clip, {.least = 0}, "Maximum global gradient norm; 0: no clipping.");
  add_seed(t, o.engine.seed);
}

}  // namespace

EngineOptions CommonOptions::engine_options() const {
  EngineOptions options = engine;
  options.precision.compute = precision.value_or(options.precision.compute);
  options.memory_budget_bytes = memory_budget.value_or(options.memory_budget_bytes);
  options.optimizer = make_optimizer(optimizer);
  return options;
}

OptionTable common_option_table(CommonOptions& options) {
  OptionTable table;
  add_world(table, options.world);
  add_schedule(table, options.engine);
  table.bytes("memory-budget", options.memory_budget,
              "Maximum memory per rank; the engine then chooses options that fit and do not change results.");
  add_precision(table, options);
  add_optimizer(table, options);
  return table;
}

}  // namespace aliquot
