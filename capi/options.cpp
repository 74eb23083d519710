#include "capi/options.h"

#include <charconv>
#include <cmath>
#include <fmt/format.h>
#include <utility>
#include <vector>

#include "capi/status.h"

namespace aliquot::capi {
namespace {

template <typename Number>
Number number(std::string_view text, Number least, const char* what) {
  Number value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !(value >= least)) {
    throw UsageError(fmt::format("\"{}\" will not do: give {}, {} or more", text, what, least));
  }
  if constexpr (std::is_floating_point_v<Number>) {
    if (!std::isfinite(value)) throw UsageError(fmt::format("\"{}\" will not do: give a finite number", text));
  }
  return value;
}

template <typename Number>
Number whole(std::string_view text, Number least) {
  return number<Number>(text, least, "a whole number");
}

double real(std::string_view text) { return number<double>(text, 0.0, "a number"); }
float real32(std::string_view text) { return static_cast<float>(real(text)); }

/// "1048576", "2GiB", "1500MB".
int64_t bytes(std::string_view text) {
  constexpr std::pair<std::string_view, int64_t> kSuffixes[] = {
      {"KiB", 1LL << 10}, {"MiB", 1LL << 20}, {"GiB", 1LL << 30}, {"TiB", 1LL << 40},
      {"KB", 1'000},      {"MB", 1'000'000},  {"GB", 1000000000}, {"TB", 1000000000000}};
  for (const auto& [suffix, factor] : kSuffixes) {
    if (!text.ends_with(suffix)) continue;
    std::string_view number = text.substr(0, text.size() - suffix.size());
    while (number.ends_with(' ')) number.remove_suffix(1);
    const double value = real(number) * static_cast<double>(factor);
    if (value < 9e18) return std::llround(value);
  }
  return number<int64_t>(text, 0, "a number of bytes, with KiB, MiB, GiB, KB, MB or GB after it if need be");
}

int recomputed(std::string_view text) {
  if (const auto count = recompute_count(text)) return *count;
  return number<int>(text, 0, "auto, none, block or a number of uses");
}

bool on(std::string_view text) {
  if (text == "on" || text == "off") return text == "on";
  throw UsageError(fmt::format("\"{}\" will not do: give on or off", text));
}

template <typename T>
T choice(std::string_view text, std::initializer_list<std::pair<std::string_view, T>> choices) {
  std::string names;
  for (const auto& [name, value] : choices) {
    if (name == text) return value;
    names += fmt::format("{}{}", names.empty() ? "" : ", ", name);
  }
  throw UsageError(fmt::format("\"{}\" will not do: give one of {}", text, names));
}

DType dtype(std::string_view text) {
  return choice<DType>(text, {{"fp32", DType::kFloat32}, {"bf16", DType::kBFloat16}});
}

using Text = std::string_view;
using Entry = std::pair<std::string_view, void (*)(Options&, Text)>;

void set_betas(Options& o, Text text) {
  const std::size_t comma = text.find(',');
  if (comma == Text::npos) throw UsageError("give two numbers with a comma between, as in 0.9,0.95");
  o.optimizer.beta1 = real32(text.substr(0, comma));
  o.optimizer.beta2 = real32(text.substr(comma + 1));
}

void set_quantize(Options& o, Text text) {
  const int what = choice<int>(text, {{"none", 0}, {"weights", 1}, {"gradients", 2}, {"both", 3}});
  o.engine.quantize_weights = (what & 1) != 0;
  o.engine.quantize_gradients = (what & 2) != 0;
}

const std::vector<Entry>& world_entries() {
  static const std::vector<Entry> entries = {
      {"device",
       [](Options& o, Text t) {
         using enum DeviceChoice;
         o.world.device = choice<DeviceChoice>(t, {{"auto", kAuto}, {"host", kHost}, {"cuda", kCuda}});
       }},
      {"world",
       [](Options& o, Text t) {
         using enum WorldChoice;
         o.world.kind =
             choice<WorldChoice>(t, {{"auto", kAuto}, {"threads", kThreads}, {"mpi", kMpi}, {"nccl", kNccl}});
       }},
      {"threads", [](Options& o, Text t) { o.world.threads_per_rank = whole(t, 1); }},
      {"timeout", [](Options& o, Text t) { o.world.timeout_seconds = real(t); }}};
  return entries;
}

const std::vector<Entry>& optimizer_entries() {
  static const std::vector<Entry> entries = {
      {"optimizer", [](Options& o, Text t) { o.optimizer.name = t; }},
      {"lr", [](Options& o, Text t) { o.optimizer.lr = real32(t); }},
      {"betas", set_betas},
      {"eps", [](Options& o, Text t) { o.optimizer.eps = real32(t); }},
      {"weight-decay", [](Options& o, Text t) { o.optimizer.weight_decay = real32(t); }},
      {"momentum", [](Options& o, Text t) { o.optimizer.momentum = real32(t); }},
      {"nesterov", [](Options& o, Text t) { o.optimizer.nesterov = on(t); }},
      {"muon-lr", [](Options& o, Text t) { o.optimizer.muon_lr = real32(t); }},
      {"state", [](Options& o, Text t) { o.engine.moments = dtype(t); }},
      {"clip", [](Options& o, Text t) { o.engine.clip = real(t); }},
      {"seed", [](Options& o, Text t) { o.engine.seed = whole(t, uint64_t{0}); }}};
  return entries;
}

const std::vector<Entry>& precision_entries() {
  static const std::vector<Entry> entries = {
      {"precision", [](Options& o, Text t) { o.engine.precision.compute = t == "fp16" ? DType::kFloat16 : dtype(t); }},
      {"gradients", [](Options& o, Text t) { o.engine.precision.gradients = dtype(t); }},
      {"reduce-precision", [](Options& o, Text t) { o.engine.precision.reduce = dtype(t); }},
      {"master", [](Options& o, Text t) {
         o.engine.precision.master =
             choice<MasterForm>(t, {{"split", MasterForm::kSplit}, {"fp32", MasterForm::kWhole}});
       }}};
  return entries;
}

/// none, host or disk:DIR
void set_offload(Offload& kind, std::string& directory, Text text) {
  constexpr std::string_view kDisk = "disk:";
  const bool on_disk = text.starts_with(kDisk) && text.size() > kDisk.size();
  if (!on_disk && text != "none" && text != "host")
    throw UsageError(fmt::format("\"{}\" will not do: give one of none, host, disk:DIR", text));
  kind = on_disk ? Offload::kDisk : text == "host" ? Offload::kHost : Offload::kNone;
  directory = on_disk ? text.substr(kDisk.size()) : "";
}

const std::vector<Entry>& engine_entries() {
  static const std::vector<Entry> entries = {
      {"zero-stage", [](Options& o, Text t) { o.engine.zero_stage = whole(t, 0); }},
      {"replicas", [](Options& o, Text t) { o.engine.replicas = whole(t, 1); }},
      {"accumulate", [](Options& o, Text t) { o.engine.accumulate = whole(t, 1); }},
      {"accumulate-into",
       [](Options& o, Text t) {
         using enum AccumulateInto;
         o.engine.accumulate_into = choice<AccumulateInto>(t, {{"auto", kAuto}, {"full", kFull}, {"shard", kShard}});
       }},
      {"prefetch", [](Options& o, Text t) { o.engine.prefetch = whole(t, 0); }},
      {"keep-gathered", [](Options& o, Text t) { o.engine.keep_gathered = whole(t, 0); }},
      {"recompute", [](Options& o, Text t) { o.engine.recompute = recomputed(t); }},
      {"gather",
       [](Options& o, Text t) {
         using enum GatherMode;
         o.engine.gather = choice<GatherMode>(t, {{"auto", kAuto}, {"view", kView}, {"copy", kCopy}});
       }},
      {"offload", [](Options& o, Text t) { set_offload(o.engine.offload_state, o.engine.offload_state_to, t); }},
      {"offload-parameters",
       [](Options& o, Text t) { set_offload(o.engine.offload_parameters, o.engine.offload_parameters_to, t); }},
      {"memory-budget", [](Options& o, Text t) { o.engine.memory_budget_bytes = bytes(t); }},
      {"update-in-backward", [](Options& o, Text t) { o.engine.update_in_backward = on(t); }},
      {"reproducible", [](Options& o, Text t) { o.engine.reproducible = on(t); }},
      {"quantize", set_quantize},
      {"max-skipped", [](Options& o, Text t) { o.engine.max_skipped = whole(t, 0); }},
      {"check", [](Options& o, Text t) { o.engine.check = on(t); }}};
  return entries;
}

}  // namespace

void Options::set(std::string_view name, std::string_view value) {
  std::string known;
  for (const auto* entries : {&world_entries(), &engine_entries(), &precision_entries(), &optimizer_entries()}) {
    for (const auto& [entry, apply] : *entries) {
      known += fmt::format("{}{}", known.empty() ? "" : ", ", entry);
      if (entry != name) continue;
      try {
        return apply(*this, value);
      } catch (const UsageError& error) {
        throw UsageError(fmt::format("the option {}: {}", name, error.what()));
      }
    }
  }
  throw UsageError(fmt::format("there is no option \"{}\"; there are {}", name, known));
}

EngineOptions Options::engine_options() const {
  EngineOptions options = engine;
  options.optimizer = optimizer.make();
  return options;
}

}  // namespace aliquot::capi

using aliquot::capi::given;
using aliquot::capi::guarded;

int aliquot_options_create(aliquot_options** options) {
  return guarded([&] { given(options, "where the options go") = new aliquot_options; });
}

int aliquot_options_set(aliquot_options* options, const char* name, const char* value) {
  return guarded([&] {
    given(options, "options").options.set(&given(name, "an option's name"), &given(value, "an option's value"));
  });
}

void aliquot_options_free(aliquot_options* options) { delete options; }
