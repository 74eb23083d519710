#include "apps/options/deepspeed.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "apps/options/deepspeed_json.h"
#include "apps/options/deepspeed_keys.h"
#include "apps/options/settings_json.h"
#include "kernels/system/error.h"

namespace aliquot {
namespace {

constexpr double kDeepspeedDefaultLr = 1e-3;  // default of DeepSpeed's optimizers and of warmup_max_lr

/// Formats a number as the options of Aliquot accept it: 5e8 and "1_000_000" become integers.
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

constexpr RealRange kRatio{0, 1};

class DeepspeedTranslator {
 public:
  DeepspeedTranslator(TrainOptions& options, DeepspeedFile file, std::optional<double> ratio_base_lr)
      : options_(options), table_(train_option_table(options)), file_(std::move(file)), ratio_base_lr_(ratio_base_lr) {}

  void translate_all() {
    for (const DeepspeedKey& key : deepspeed_keys()) translate_key(key);
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
  /// The value of `key`; null if the file does not have the key or its value is "auto".
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
  /// Sets `option` to the number in the file, or to DeepSpeed's default `omitted` if the file does not have the key.
  /// Keeps Aliquot's default for "auto".
  void set_number(const std::string& key, std::string_view option, double omitted) const {
    if (is_auto(key)) return;
    const Json* value = find(key);
    set(key, option, value != nullptr ? number_text(*value) : exact_text(omitted));
  }
  double real(const std::string& key, double default_value, RealRange range = {}) const {
    const Json* value = find(key);
    if (value == nullptr) return default_value;
    try {
      return parse_real(number_text(*value), range);
    } catch (const UsageError& error) {
      refuse(key, error.what());
    }
  }
  int64_t integer(const std::string& key, int64_t default_value) const {
    const Json* value = find(key);
    if (value == nullptr) return default_value;
    try {
      return parse_count(number_text(*value), {0, int64_t{1} << 30});
    } catch (const UsageError& error) {
      refuse(key, error.what());
    }
  }
  bool flag(const std::string& key, bool default_value = false) const {
    const Json* value = find(key);
    if (value == nullptr) return default_value;
    if (!value->is_boolean()) refuse(key, fmt::format("invalid value {}: expected true or false.", value_text(*value)));
    return value->get<bool>();
  }
  std::string word(const std::string& key) const {
    const Json* value = find(key);
    if (value == nullptr) return "";
    if (!value->is_string()) refuse(key, fmt::format("invalid value {}: expected a string.", value_text(*value)));
    return value->get<std::string>();
  }

  void translate_key(const DeepspeedKey& key);
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

void DeepspeedTranslator::translate_key(const DeepspeedKey& key) {
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
    refuse(path, fmt::format("{} is not supported: leave the key out{}.", value_text(*value),
                             key.what == "null" ? "" : fmt::format(" or set it to {}", key.what)));
  }
}

void DeepspeedTranslator::translate_batch() {
  const std::string micro = "train_micro_batch_size_per_gpu";
  if (const Json* value = find(micro)) {
    set(micro, "micro-batch", number_text(*value));
  } else if (!is_auto(micro) && find("train_batch_size") != nullptr) {
    options_.micro_batch = 0;  // resolve() computes it from the global batch and the number of ranks
  }
}

void DeepspeedTranslator::translate_precision() {
  const std::string bf16 = file_.values.contains("bf16.enabled") ? "bf16.enabled" : "bfloat16.enabled";
  const bool in_bf16 = flag(bf16), in_fp16 = flag("fp16.enabled");
  if (in_bf16 && in_fp16) refuse("fp16.enabled", "bf16 is also enabled: enable only one of them.");
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

/// Sets the types in which gradients are accumulated and reduced.
void DeepspeedTranslator::translate_types() {
  const auto translate_type = [this](const std::string& key, std::string_view option) {
    const std::string type = lower(word(key));
    if (type.empty()) return;
    if (type != "fp32" && type != "float32" && type != "float" && type != "bf16" && type != "bfloat16")
      refuse(key, fmt::format("'{}' is not supported: expected fp32 or bf16.", type));
    set(key, option, type.starts_with('b') ? "bf16" : "fp32");
  };
  translate_type("data_types.grad_accum_dtype", "gradients");
  translate_type("communication_data_type", "reduce-precision");
}

void DeepspeedTranslator::translate_betas(double first, double second) {
  const std::string key = "optimizer.params.betas";
  const Json* value = find(key);
  if (is_auto(key) || (value != nullptr && *value == Json{"auto", "auto"})) return;
  if (value == nullptr) return set(key, "betas", fmt::format("{},{}", first, second));
  if (!value->is_array() || value->size() != 2)
    refuse(key, fmt::format("invalid value {}: expected two numbers, as in [0.9, 0.999].", value_text(*value)));
  set(key, "betas", number_text((*value)[0]) + "," + number_text((*value)[1]));
}

/// Muon has separate learning rates for matrices (muon_lr) and for other parameters (adam_lr); `lr` is the default of
/// both.
void DeepspeedTranslator::translate_muon(const std::string& params) {
  const auto key_or_lr = [&](const char* key) { return params + (find(params + key) != nullptr ? key : "lr"); };
  set_number(key_or_lr("muon_lr"), "muon-lr", 0.02);
  set_number(key_or_lr("adam_lr"), "lr", 3e-4);
  set_number(params + "momentum", "momentum", 0.95);
  set_number(params + "eps", "eps", 1e-10);
  set_number(params + "weight_decay", "weight-decay", 0);
  translate_betas(0.9, 0.95);
}

/// Without the block `optimizer`, DeepSpeed uses an optimizer that the program creates, so Aliquot's options apply.
void DeepspeedTranslator::translate_optimizer() {
  const std::string params = "optimizer.params.", type = lower(word("optimizer.type"));
  if (type.empty()) {
    if (has("optimizer") && !is_auto("optimizer.type"))
      refuse("optimizer.type", "the key is missing: expected Adam, AdamW, Lion, SGD or Muon.");
    return;
  }
  if (type != "adam" && type != "adamw" && type != "lion" && type != "sgd" && type != "muon")
    refuse("optimizer.type",
           fmt::format("'{}' is not supported: expected Adam, AdamW, Lion, SGD or Muon.", word("optimizer.type")));
  const bool decoupled = flag(params + "adam_w_mode", true);  // DeepSpeed's Adam is AdamW by default
  set("optimizer.type", "optimizer", type == "adam" && decoupled ? "adamw" : type);
  if (type == "muon") return translate_muon(params);
  set_number(params + "lr", "lr", kDeepspeedDefaultLr);
  set_number(params + "eps", "eps", 1e-8);
  const bool is_torch_adamw = flag(params + "torch_adam") && decoupled;  // PyTorch's default weight decay is 0.01
  set_number(params + "weight_decay", "weight-decay", is_torch_adamw && type.starts_with("adam") ? 0.01 : 0);
  if (type == "sgd") set_number(params + "momentum", "momentum", 0);
  if (type == "sgd") options_.optimizer.nesterov = flag(params + "nesterov");
  translate_betas(0.9, type == "lion" ? 0.99 : 0.999);
}

void DeepspeedTranslator::translate_scheduler() {
  const std::string type = word("scheduler.type");
  if (type.empty() && has("scheduler") && !is_auto("scheduler.type"))
    refuse("scheduler.type", "the key is missing: expected WarmupLR, WarmupDecayLR or WarmupCosineLR.");
  if (is_auto("scheduler.type")) return;
  set("scheduler", "schedule", "constant");
  if (type.empty()) return;
  if (type != "WarmupLR" && type != "WarmupDecayLR" && type != "WarmupCosineLR")
    refuse("scheduler.type",
           fmt::format("'{}' is not supported: expected WarmupLR, WarmupDecayLR or WarmupCosineLR.", type));
  const std::string params = "scheduler.params.";
  set_number(params + "warmup_num_steps", "warmup", 1000);
  const std::string shape = word(params + "warmup_type");
  if (!is_auto(params + "warmup_type")) set(params + "warmup_type", "warmup-shape", shape.empty() ? "log" : shape);
  if (type != "WarmupLR") {
    if (!file_.values.contains(params + "total_num_steps"))
      refuse(params + "total_num_steps", "the key is missing: " + type + " needs it.");
    set_number(params + "total_num_steps", "steps", 0);
    set("scheduler.type", "schedule", type == "WarmupDecayLR" ? "linear" : "cosine");
  }
  translate_rates(type);
}

/// Sets the learning rates at the start and the end of the warm-up, and the minimum learning rate.
void DeepspeedTranslator::translate_rates(const std::string& type) {
  const std::string params = "scheduler.params.";
  if (type == "WarmupCosineLR") {  // its parameters are fractions of the optimizer's learning rate
    const double rate = ratio_base_lr_.value_or(*options_.optimizer.lr);
    options_.warmup_from = real(params + "warmup_min_ratio", 0, kRatio) * rate;
    options_.min_lr = real(params + "cos_min_ratio", 1e-4, kRatio) * rate;
    return;
  }
  set_number(params + "warmup_max_lr", "lr", kDeepspeedDefaultLr);
  if (options_.optimizer.kind == OptimizerKind::kMuon)
    set_number(params + "warmup_max_lr", "muon-lr", kDeepspeedDefaultLr);  // the learning-rate schedule scales both
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
  if (device != "nvme")
    refuse(key + ".device", fmt::format("'{}' is not supported: expected none, cpu or nvme.", device));
  const std::string directory = word(key + ".nvme_path");
  if (directory.empty()) refuse(key + ".nvme_path", "the key is missing: the device nvme needs a directory.");
  set(key, option, "disk:" + directory);
}

void DeepspeedTranslator::translate_quantization() {
  options_.engine.quantize_weights = flag("zero_optimization.zero_quantized_weights");
  options_.engine.quantize_gradients = flag("zero_optimization.zero_quantized_gradients");
}

/// DeepSpeed counts elements to prefetch and Aliquot counts units, so only 0 (no prefetch) can be translated.
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

/// `ratio_base_lr` is the learning rate that the ratios in the file refer to; by default, the one in the file.
std::vector<std::string> translate(TrainOptions& options, const DeepspeedFile& file,
                                   std::optional<double> ratio_base_lr = {}) {
  DeepspeedTranslator translation(options, file, ratio_base_lr);
  translation.translate_all();
  return std::move(translation).ignored_keys();
}

}  // namespace

std::vector<std::string> apply_deepspeed_file(TrainOptions& options, const std::string& path) {
  return translate(options, read_deepspeed_file(path));
}

// Each file is read only once, because it may be a pipe. Its values are applied several times.
std::vector<std::string> parse_train_arguments(TrainOptions& options, const std::vector<std::string>& arguments) {
  TrainOptions named;  // used only for the name of the DeepSpeed file, which must be applied before the other options
  const OptionTable names = train_option_table(named);
  const std::vector<GivenOption> given = read_arguments(names, arguments);
  set_options(names, given);
  std::vector<std::string> remarks;
  if (!named.deepspeed.empty()) {
    const DeepspeedFile file = read_deepspeed_file(named.deepspeed);
    TrainOptions trial;  // used only for the final learning rate, which the ratios in the file refer to
    translate(trial, file);
    set_options(train_option_table(trial), given);
    const std::vector<std::string> ignored_keys = translate(options, file, trial.optimizer.lr);
    if (!ignored_keys.empty())
      remarks.push_back(
          fmt::format("{}: these keys have no effect in Aliquot: {}", named.deepspeed, fmt::join(ignored_keys, ", ")));
  }
  set_options(train_option_table(options), given);
  return remarks;
}

}  // namespace aliquot
