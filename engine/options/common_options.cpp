#include "engine/options/common_options.h"

#include <array>
#include <limits>

#include "engine/options/enum_names.h"
#include "kernels/system/error.h"

namespace aliquot {
namespace {

constexpr IntegerRange kUses{0, 1 << 20};
constexpr RealRange kRate{.least = 0, .most = 1e29};  // the optimizers take less than 1e30
constexpr std::string_view kDisk = "disk:";

/// An option whose value is not a field of its own.
void add(OptionTable& t, const char* name, std::string hint, const char* meaning, auto set, auto get) {
  t.add({name, std::move(hint), meaning, false, std::move(set), std::move(get)});
}

void add_world(OptionTable& t, WorldOptions& o) {
  t.choice("device", o.device, kDeviceWords, "Where to compute.");
  t.choice("world", o.kind, kWorldWords, "Over what ranks reach each other.");
  add(
      t, "threads", "N", "Host threads a rank computes with; default the node's cores / ranks on it.",
      [&o](std::string_view text) {
        o.threads_per_rank = static_cast<int>(parse_count(text, {1, 4096}));
      },
      [&o] { return o.threads_per_rank == 0 ? OptionValue() : OptionValue(int64_t{o.threads_per_rank}); });
  t.real("timeout", o.timeout_seconds, {.least = 0.001, .most = 1e9},
         "Seconds until a collective that waits is given up.");
}

void add_offload(OptionTable& t, const char* name, Offload& kind, std::string& directory, const char* meaning) {
  const auto set = [&kind, &directory](std::string_view text) {
    if (text == kDisk) throw UsageError("disk: wants a directory, as in disk:/scratch.");
    const bool on_disk = text.starts_with(kDisk) && text != enum_name(kOffloadWords, Offload::kDisk);
    const Offload given = on_disk ? Offload::kDisk : parse_enum<Offload>(text, kOffloadWords);
    if (given == Offload::kDisk && !on_disk) throw UsageError("DIR stands for a directory, as in disk:/scratch.");
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
    count = is_number ? static_cast<int>(parse_count(text, {0, std::numeric_limits<int>::max()}))
                      : *recompute_count(parse_choice(text, words));
  };
  const auto get = [&count]() -> OptionValue {
    for (const std::string& word : words) {
      if (recompute_count(word) == count) return word;
    }
    return std::to_string(count);
  };
  add(t, "recompute", joined(words),
      "What runs forward again in backward and keeps nothing; auto: what --memory-budget needs.", set, get);
}

/// "auto" is the default and is not listed.
void add_accumulate_into(OptionTable& t, AccumulateInto& into) {
  constexpr EnumNames<AccumulateInto> kAll = kAccumulateIntoWords;
  const auto listed = kAll.subspan(1);
  const auto set = [&into, listed, kAll](std::string_view text) {
    into = text == kAll.front().text ? kAll.front().value : parse_enum(text, listed);
  };
  add(t, "accumulate-into", joined(names_of(listed)),
      "Sum micro-batches unsharded or sharded; default full at stages 0 and 1, shard at 2 and 3.", set, [&into, kAll] {
        return into == kAll.front().value ? OptionValue() : OptionValue(std::string(enum_name(kAll, into)));
      });
}

void add_quantize(OptionTable& t, bool& weights, bool& gradients) {
  const auto set = [&weights, &gradients](std::string_view text) {
    const auto chosen = parse_enum<Quantized>(text, kQuantizeWords);
    weights = chosen.weights;
    gradients = chosen.gradients;
  };
  add(t, "quantize", joined(names_of<Quantized>(kQuantizeWords)), "8-bit weights and gradients between nodes.", set,
      [&weights, &gradients]() -> OptionValue {
        return std::string(enum_name(kQuantizeWords, Quantized{weights, gradients}));
      });
}

void add_schedule(OptionTable& t, EngineOptions& o) {
  t.choice("zero-stage", o.zero_stage, kStageWords,
           "What is sharded: nothing, optimizer state, gradients too, parameters too.");
  t.count("replicas", o.replicas, {1, 1 << 20},
          "Hybrid sharding: groups of contiguous ranks, each holding one whole model.");
  t.count("accumulate", o.accumulate, {1, kMaxMicroBatches}, "Micro-batches a step.");
  add_accumulate_into(t, o.accumulate_into);
  t.count("prefetch", o.prefetch, kUses, "How many units ahead are gathered.");
  t.count("keep-gathered", o.keep_gathered, kUses, "How many units stay whole after forward.");
  add_recompute(t, o.recompute);
  t.choice("gather", o.gather, kGatherWords, "How one host's ranks see each other's shards.");
  add_offload(t, "offload", o.offload_state, o.offload_state_to, "Where optimizer state lives between uses.");
  add_offload(t, "offload-parameters", o.offload_parameters, o.offload_parameters_to,
              "Where parameter shards live between uses, at stage 3.");
  t.toggle("update-in-backward", o.update_in_backward,
           "Update a unit as soon as its gradient is reduced; needs --clip 0.");
  t.toggle("reproducible", o.reproducible, "The same bits on any power-of-two number of ranks.");
  add_quantize(t, o.quantize_weights, o.quantize_gradients);
  t.count("max-skipped", o.max_skipped, {0, std::numeric_limits<int>::max()},
          "Stop after so many steps in a row that were not finite.");
  t.toggle("check", o.check, "Look for writes outside parameters and activations, and for uses out of turn.");
}

void add_precision(OptionTable& t, CommonOptions& o) {
  Precision& precision = o.engine.precision;
  t.choice("precision", o.precision, kComputeWords, "What is computed in; default fp32 on hosts, bf16 on GPUs.");
  t.choice("gradients", precision.gradients, kGradientWords, "What gradients are accumulated in.");
  t.choice("reduce-precision", precision.reduce, kGradientWords,
           "What gradients are sent in; default that of --gradients.");
  t.choice("master", precision.master, kMasterWords,
           "How the fp32 master is kept beside bf16; the same bits either way.");
  t.choice("state", o.engine.moments, kGradientWords, "What optimizer moments are kept in.");
}

void add_betas(OptionTable& t, OptimizerOptions& o) {
  const auto set = [&o](std::string_view text) {
    const size_t comma = text.find(',');
    if (comma == std::string_view::npos) throw UsageError("give two numbers with a comma between, as in 0.9,0.95.");
    const RealRange range{0, 1};
    const double first = parse_real(text.substr(0, comma), range), second = parse_real(text.substr(comma + 1), range);
    if (first >= 1 || second >= 1) throw UsageError("a decay of 1 never forgets: give numbers below 1.");
    o.beta1 = first;
    o.beta2 = second;
  };
  add(t, "betas", "X,Y", "Decay of the first and second moment.", set, [&o] {
    return o.beta1 && o.beta2 ? OptionValue(exact_text(*o.beta1) + "," + exact_text(*o.beta2)) : OptionValue();
  });
}

/// Any 64 bits: programs draw seeds.
void add_seed(OptionTable& t, uint64_t& seed) {
  const auto set = [&seed](std::string_view text) { seed = parse_seed(text); };
  add(t, "seed", "N", "What the first weights are drawn from.", set, [&seed]() -> OptionValue { return seed; });
}

void add_optimizer(OptionTable& t, CommonOptions& o) {
  t.choice("optimizer", o.optimizer.kind, kOptimizerWords, "The update rule.");
  t.real("lr", o.optimizer.lr, kRate, "The learning rate.");
  add_betas(t, o.optimizer);
  t.real("eps", o.optimizer.eps, kRate, "Added to the root of the second moment.");
  t.real("weight-decay", o.optimizer.weight_decay, kRate, "Decoupled; not of tensors with one dimension.");
  t.real("momentum", o.optimizer.momentum, {0, 1}, "Of sgd, default 0.9, and of muon, default 0.95.");
  t.toggle("nesterov", o.optimizer.nesterov, "Nesterov's momentum, for sgd, default off, and muon, default on.");
  t.real("muon-lr", o.optimizer.muon_lr, kRate,
         "Muon's rate of matrices where --lr is the rest's; the schedule scales both.");
  t.real("clip", o.engine.clip, {.least = 0}, "The most the gradients' global norm may be; 0 is off.");
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
  table.bytes("memory-budget", options.memory_budget, "Fit this a rank, and choose what changes no result.");
  add_precision(table, options);
  add_optimizer(table, options);
  return table;
}

}  // namespace aliquot
