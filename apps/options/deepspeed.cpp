#include "apps/options/deepspeed.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "apps/options/deepspeed_json.h"
#include "apps/options/deepspeed_keys.h"
#include "kernels/system/error.h"

namespace aliquot {
namespace {

constexpr double kDeepspeedDefaultLr = 1e-3;  // DeepSpeed's, of every optimizer and of a warm-up's end

/// Numbers as our options take them: 5e8 and "1_000_000" are whole.
std::string number_text(const Json& value) {
  std::string text = value.is_string() ? value.get<std::string>() : value.dump();
  if (value.is_boolean()) return text;
  std::erase(text, '_');
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size())
    return value.is_string() ? value.get<std::string>() : text;
  if (number == std::floor(number) && std::abs(number) < 9e15) return std::to_string(static_cast<int64_t>(number));
  return exact_text(number);
}

std::string lower(std::string text) {
  std::ranges::transform(text, text.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return text;
}

constexpr RealRange kShare{0, 1};

class DeepspeedTranslator {
 public:
  DeepspeedTranslator(TrainOptions& options, DeepspeedFile file, std::optional<double> rate_of_shares)
      : options_(options),
        table_(train_option_table(options)),
        file_(std::move(file)),
        ratio_base_lr_(rate_of_shares) {}

  void translate_all() {
    for (const DeepspeedKey& key : deepspeed_keys()) take(key);
    translate_batch();
    translate_precision();
    translate_types();
    translate_optimizer();
    translate_scheduler();
    translate_offload("offload_optimizer", "cpu_offload", "offload");
    translate_offload("offload_param", "cpu_offload_params", "offload-parameters");
    translate_quantization();
    translate_prefetch();
  }
  std::vector<std::string> ignored_keys() && { return std::move(file_.ignored_keys); }

 private:
  [[noreturn]] void refuse(const std::string& key, const std::string& why) const {
    throw UsageError(fmt::format("--deepspeed {}: {}: {}", file_.path, key, why));
  }
  /// Null where the file does not say, or leaves it to us.
  const Json* find(const std::string& key) const {
    const auto found = file_.values.find(key);
    return found == file_.values.end() || found->second == "auto" ? nullptr : &found->second;
  }
  bool is_auto(const std::string& key) const {
    const auto found = file_.values.find(key);
    return found != file_.values.end() && found->second == "auto";
  }
  bool has(const std::string& block) const {
    const auto at = file_.values.lower_bound(block + ".");
    return at != file_.values.end() && at->first.starts_with(block + ".");
  }

  void set(const std::string& key, std::string_view option, const std::string& text) const {
    try {
      table_.find(option)->set(text);
    } catch (const UsageError& error) {
      refuse(key, error.what());
    }
  }
  /// A number of the file, or what DeepSpeed takes without it, or what we take for "auto".
  void set_number(const std::string& key, std::string_view option, double omitted) const {
    if (is_auto(key)) return;
    const Json* value = find(key);
    set(key, option, value != nullptr ? number_text(*value) : exact_text(omitted));
  }
  double real(const std::string& key, double otherwise, RealRange range = {}) const {
    const Json* value = find(key);
    if (value == nullptr) return otherwise;
    try {
      return parse_real(number_text(*value), range);
    } catch (const UsageError& error) {
      refuse(key, error.what());
    }
  }
  int64_t integer(const std::string& key, int64_t otherwise) const {
    const Json* value = find(key);
    if (value == nullptr) return otherwise;
    try {
      return parse_count(number_text(*value), {0, int64_t{1} << 30});
    } catch (const UsageError& error) {
      refuse(key, error.what());
    }
  }
  bool flag(const std::string& key, bool otherwise = false) const {
    const Json* value = find(key);
    if (value == nullptr) return otherwise;
    if (!value->is_boolean()) refuse(key, "give true or false.");
    return value->get<bool>();
  }
  std::string word(const std::string& key) const {
    const Json* value = find(key);
    if (value == nullptr) return "";
    if (!value->is_string()) refuse(key, "give a name in quotes.");
    return value->get<std::string>();
  }

  void take(const DeepspeedKey& key);
  void translate_batch();
  void translate_precision();
  void translate_loss_scaling();
  void translate_types();
  void translate_muon(const std::string& params);
  void translate_optimizer();
  void translate_betas(double first, double second);
  void translate_scheduler();
  void translate_rates(const std::string& type);
  void translate_offload(const std::string& block, const std::string& old_key, std::string_view option);
  void translate_quantization();
  void translate_prefetch();

  TrainOptions& options_;
  OptionTable table_;
  DeepspeedFile file_;
  std::optional<double> ratio_base_lr_;
};

void DeepspeedTranslator::take(const DeepspeedKey& key) {
  const std::string path(key.path);
  const Json* value = find(path);
  if (key.handling == KeyHandling::kMapped) {
    if (value != nullptr) {
      set(path, key.what, number_text(*value));
    } else if (!is_auto(path) && !key.omitted.empty()) {
      set(path, key.what, std::string(key.omitted));
    }
  }
  if (key.handling == KeyHandling::kFixed && value != nullptr && number_text(*value) != key.what) {
    refuse(path, fmt::format("{} is not to be had here: leave it out{}.", value->dump(),
                             key.what == "null" ? "" : fmt::format(", or give {}", key.what)));
  }
}

void DeepspeedTranslator::translate_batch() {
  const std::string micro = "train_micro_batch_size_per_gpu";
  if (const Json* value = find(micro)) {
    set(micro, "micro-batch", number_text(*value));
  } else if (!is_auto(micro) && find("train_batch_size") != nullptr) {
    options_.micro_batch = 0;  // what the whole leaves a rank, known with the ranks
  }
}

void DeepspeedTranslator::translate_precision() {
  const std::string bf16 = file_.values.contains("bf16.enabled") ? "bf16.enabled" : "bfloat16.enabled";
  const bool in_bf16 = flag(bf16), in_fp16 = flag("fp16.enabled");
  if (in_bf16 && in_fp16) refuse("fp16.enabled", "bf16 is enabled too: enable one of them.");
  if (in_bf16) set(bf16, "precision", "bf16");
  if (in_fp16) set("fp16.enabled", "precision", "fp16");
  if (!in_bf16 && !in_fp16 && !is_auto(bf16) && !is_auto("fp16.enabled")) options_.precision = DType::kFloat32;
  translate_loss_scaling();
}

void DeepspeedTranslator::translate_loss_scaling() {
  LossScaling& scaling = options_.engine.loss_scaling;
  scaling.loss_scale = real("fp16.loss_scale", scaling.loss_scale);
  scaling.initial_scale_power = static_cast<int>(integer("fp16.initial_scale_power", scaling.initial_scale_power));
  scaling.loss_scale_window = integer("fp16.loss_scale_window", scaling.loss_scale_window);
  scaling.hysteresis = static_cast<int>(integer("fp16.hysteresis", scaling.hysteresis));
  scaling.consecutive_hysteresis = flag("fp16.consecutive_hysteresis", scaling.consecutive_hysteresis);
  scaling.min_loss_scale = real("fp16.min_loss_scale", scaling.min_loss_scale);
  try {
    LossScaler checked(scaling);
  } catch (const UsageError& error) {
    refuse("fp16", error.what());
  }
}

/// What gradients are summed and sent in.
void DeepspeedTranslator::translate_types() {
  const auto take_type = [this](const std::string& key, std::string_view option) {
    const std::string type = lower(word(key));
    if (type.empty()) return;
    if (type != "fp32" && type != "float32" && type != "float" && type != "bf16" && type != "bfloat16")
      refuse(key, fmt::format("'{}' is not to be had here: give fp32 or bf16.", type));
    set(key, option, type.starts_with('b') ? "bf16" : "fp32");
  };
  take_type("data_types.grad_accum_dtype", "gradients");
  take_type("communication_data_type", "reduce-precision");
}

void DeepspeedTranslator::translate_betas(double first, double second) {
  const std::string key = "optimizer.params.betas";
  const Json* value = find(key);
  if (is_auto(key) || (value != nullptr && *value == Json{"auto", "auto"})) return;
  if (value == nullptr) return set(key, "betas", fmt::format("{},{}", first, second));
  if (!value->is_array() || value->size() != 2) refuse(key, "give two numbers, as in [0.9, 0.999].");
  set(key, "betas", number_text((*value)[0]) + "," + number_text((*value)[1]));
}

/// Rates of its own for matrices and for the rest, or one for both; and defaults of its own.
void DeepspeedTranslator::translate_muon(const std::string& params) {
  const auto own_or_common = [&](const char* own) { return params + (find(params + own) != nullptr ? own : "lr"); };
  set_number(own_or_common("muon_lr"), "muon-lr", 0.02);
  set_number(own_or_common("adam_lr"), "lr", 3e-4);
  set_number(params + "momentum", "momentum", 0.95);
  set_number(params + "eps", "eps", 1e-10);
  set_number(params + "weight_decay", "weight-decay", 0);
  translate_betas(0.9, 0.95);
}

/// Without the block DeepSpeed takes the program's own optimizer, which is ours.
void DeepspeedTranslator::translate_optimizer() {
  const std::string params = "optimizer.params.", type = lower(word("optimizer.type"));
  if (type.empty()) {
    if (has("optimizer") && !is_auto("optimizer.type"))
      refuse("optimizer.type", "it is missing: give Adam, AdamW, Lion, SGD or Muon.");
    return;
  }
  if (type != "adam" && type != "adamw" && type != "lion" && type != "sgd" && type != "muon")
    refuse("optimizer.type",
           fmt::format("'{}' is not here: give Adam, AdamW, Lion, SGD or Muon.", word("optimizer.type")));
  const bool decoupled = flag(params + "adam_w_mode", true);  // also of what DeepSpeed calls Adam
  set("optimizer.type", "optimizer", type == "adam" && decoupled ? "adamw" : type);
  if (type == "muon") return translate_muon(params);
  set_number(params + "lr", "lr", kDeepspeedDefaultLr);
  set_number(params + "eps", "eps", 1e-8);
  const bool by_torch = flag(params + "torch_adam") && decoupled;  // whose AdamW decays unless told otherwise
  set_number(params + "weight_decay", "weight-decay", by_torch && type.starts_with("adam") ? 0.01 : 0);
  if (type == "sgd") set_number(params + "momentum", "momentum", 0);
  if (type == "sgd") options_.optimizer.nesterov = flag(params + "nesterov");
  translate_betas(0.9, type == "lion" ? 0.99 : 0.999);
}

void DeepspeedTranslator::translate_scheduler() {
  const std::string type = word("scheduler.type");
  if (type.empty() && has("scheduler") && !is_auto("scheduler.type"))
    refuse("scheduler.type", "it is missing: give WarmupLR, WarmupDecayLR or WarmupCosineLR.");
  if (is_auto("scheduler.type")) return;
  set("scheduler", "schedule", "constant");
  if (type.empty()) return;
  if (type != "WarmupLR" && type != "WarmupDecayLR" && type != "WarmupCosineLR")
    refuse("scheduler.type", fmt::format("'{}' is not here: give WarmupLR, WarmupDecayLR or WarmupCosineLR.", type));
  const std::string params = "scheduler.params.";
  set_number(params + "warmup_num_steps", "warmup", 1000);
  const std::string shape = word(params + "warmup_type");
  if (!is_auto(params + "warmup_type")) set(params + "warmup_type", "warmup-shape", shape.empty() ? "log" : shape);
  if (type != "WarmupLR") {
    if (!file_.values.contains(params + "total_num_steps"))
      refuse(params + "total_num_steps", "it is missing: " + type + " needs it.");
    set_number(params + "total_num_steps", "steps", 0);
    set("scheduler.type", "schedule", type == "WarmupDecayLR" ? "linear" : "cosine");
  }
  translate_rates(type);
}

/// Where the rate rises from and to, and falls to.
void DeepspeedTranslator::translate_rates(const std::string& type) {
  const std::string params = "scheduler.params.";
  if (type == "WarmupCosineLR") {  // shares of the optimizer's rate
    const double rate = ratio_base_lr_.value_or(*options_.optimizer.lr);
    options_.warmup_from = real(params + "warmup_min_ratio", 0, kShare) * rate;
    options_.min_lr = real(params + "cos_min_ratio", 1e-4, kShare) * rate;
    return;
  }
  set_number(params + "warmup_max_lr", "lr", kDeepspeedDefaultLr);
  if (options_.optimizer.kind == OptimizerKind::kMuon)
    set_number(params + "warmup_max_lr", "muon-lr", kDeepspeedDefaultLr);  // one rate for all
  set_number(params + "warmup_min_lr", "warmup-from", 0);
  options_.min_lr = type == "WarmupDecayLR" ? options_.warmup_from : 0;
}

void DeepspeedTranslator::translate_offload(const std::string& block, const std::string& old_key,
                                            std::string_view option) {
  const std::string key = "zero_optimization." + block, old_path = "zero_optimization." + old_key;
  std::string device = word(key + ".device");
  if (device.empty() && flag(old_path)) device = "cpu";
  if (device.empty() || device == "none") return;
  if (device == "cpu") return set(key, option, "host");
  if (device != "nvme") refuse(key + ".device", fmt::format("'{}' is no place: give none, cpu or nvme.", device));
  const std::string directory = word(key + ".nvme_path");
  if (directory.empty()) refuse(key + ".nvme_path", "it is missing: say where.");
  set(key, option, "disk:" + directory);
}

void DeepspeedTranslator::translate_quantization() {
  options_.engine.quantize_weights = flag("zero_optimization.zero_quantized_weights");
  options_.engine.quantize_gradients = flag("zero_optimization.zero_quantized_gradients");
}

/// Units are gathered ahead here, not elements; that nothing is, is the same.
void DeepspeedTranslator::translate_prefetch() {
  for (const std::string key :
       {"zero_optimization.stage3_prefetch_bucket_size", "zero_optimization.prefetch_bucket_size"}) {
    if (find(key) == nullptr) continue;
    if (real(key, 1) == 0) {
      options_.engine.prefetch = 0;
    } else {
      file_.ignored_keys.push_back(key);
    }
  }
}

/// `rate_of_shares` is the rate that the file's shares are of, where that is known to be another than its own.
std::vector<std::string> translate(TrainOptions& options, const DeepspeedFile& file,
                                   std::optional<double> rate_of_shares = {}) {
  DeepspeedTranslator translation(options, file, rate_of_shares);
  translation.translate_all();
  return std::move(translation).ignored_keys();
}

}  // namespace

std::vector<std::string> apply_deepspeed_file(TrainOptions& options, const std::string& path) {
  return translate(options, read_deepspeed_file(path));
}

// Files are read once, since they may be pipes, and set as often as it takes to know what they are set upon.
std::vector<std::string> parse_train_arguments(TrainOptions& options, const std::vector<std::string>& arguments) {
  TrainOptions named;  // for the DeepSpeed file's name alone: it comes before what names it
  const OptionTable names = train_option_table(named);
  const std::vector<GivenOption> given = read_arguments(names, arguments);
  set_options(names, given);
  std::vector<std::string> remarks;
  if (!named.deepspeed.empty()) {
    const DeepspeedFile file = read_deepspeed_file(named.deepspeed);
    TrainOptions once;  // what the file gives as shares of the rate is of the rate that wins in the end
    translate(once, file);
    set_options(train_option_table(once), given);
    const std::vector<std::string> ignored_keys = translate(options, file, once.optimizer.lr);
    if (!ignored_keys.empty())
      remarks.push_back(
          fmt::format("{}: ignored, as having no meaning here: {}", named.deepspeed, fmt::join(ignored_keys, ", ")));
  }
  set_options(train_option_table(options), given);
  return remarks;
}

}  // namespace aliquot
