#include "tests/support/plain_training.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "apps/models/make_model.h"
#include "kernels/formats/float16.h"
#include "tests/support/random_values.h"

namespace aliquot::test {
namespace {

void initialize(std::vector<float>& values, const Initializer& initial, RandomValues random) {
  for (float& value : values) {
    switch (initial.kind) {
      case Initializer::Kind::kZero: value = 0.0f; break;
      case Initializer::Kind::kOne: value = 1.0f; break;
      case Initializer::Kind::kNormal: value = initial.scale * static_cast<float>(random.normal()); break;
      case Initializer::Kind::kUniform: value = initial.scale * static_cast<float>(2 * random.uniform() - 1); break;
    }
  }
}

uint64_t key_of(uint64_t seed, const std::string& name) {
  for (const char c : name) seed = (seed ^ static_cast<unsigned char>(c)) * 0x100000001B3u;
  return seed;
}

}  // namespace

OwnedTensors::OwnedTensors(Model& model, uint64_t seed) {
  for (const ModelUnit& unit : model.units()) {
    for (const ModelTensor& declared : unit.tensors) {
      const std::string name = unit.name + "." + declared.name;
      Tensor& tensor = tensors_[name];
      tensor.shape = declared.shape;
      tensor.parameter.resize(static_cast<size_t>(declared.element_count()));
      tensor.gradient.resize(tensor.parameter.size());
      initialize(tensor.parameter, declared.initial, RandomValues(key_of(seed, name)));
      declared.parameter->data = tensor.parameter.data();
      if (declared.trainable) declared.gradient->data = tensor.gradient.data();
      if (declared.parameter->type != DType::kFloat32) {
        tensor.in_fp16 = declared.parameter->type == DType::kFloat16;
        tensor.rounded_parameter.resize(tensor.parameter.size());
        declared.parameter->data = tensor.rounded_parameter.data();
      }
      if (declared.trainable && declared.gradient->type == DType::kBFloat16) {
        tensor.rounded_gradient.resize(tensor.gradient.size());
        declared.gradient->data = tensor.rounded_gradient.data();
      }
    }
  }
}

void OwnedTensors::round_parameters() {
  for (auto& [name, tensor] : tensors_) {
    for (size_t i = 0; i < tensor.rounded_parameter.size(); ++i) {
      const float value = tensor.parameter[i];
      tensor.rounded_parameter[i] = tensor.in_fp16 ? float_to_fp16(value) : float_to_bf16(value);
    }
  }
}

void OwnedTensors::widen_gradients() {
  for (auto& [name, tensor] : tensors_) {
    for (size_t i = 0; i < tensor.rounded_gradient.size(); ++i)
      tensor.gradient[i] = bf16_to_float(tensor.rounded_gradient[i]);
  }
}

void OwnedTensors::zero_gradients() {
  for (auto& [name, tensor] : tensors_) {
    std::ranges::fill(tensor.gradient, 0.0f);
    std::ranges::fill(tensor.rounded_gradient, uint16_t{0});
  }
}

PlainTraining::PlainTraining(const PlainOptions& options)
    : options_(options),
      pool_(options.threads),
      backend_(make_host_backend(pool_)),
      model_(make_model(options.shape, options.model, *backend_)),
      tensors_(std::make_unique<OwnedTensors>(*model_, options.seed)),
      activations_(model_->activations()),
      token_count_(options.model.batch *
                   (options.model.sequence == 0 ? options.shape.context : options.model.sequence)) {
  model_->set_loss_factor(options.loss_scale / static_cast<float>(token_count_));
}

double PlainTraining::evaluate(const TokenBatch& batch) {
  model_->set_batch(batch);
  run_forward();
  return model_->loss_sum() / static_cast<double>(token_count_);
}

std::vector<float> PlainTraining::decode(const DecodingPass& pass) {
  model_->set_decoding(pass);
  run_forward();
  return {model_->logits().begin(), model_->logits().end()};
}

void PlainTraining::run_forward() {
  tensors_->round_parameters();
  for (int use = 0; use < static_cast<int>(model_->uses().size()); ++use) {
    model_->set_memory(activations_.with_poisoned_scratch(use));
    model_->forward(use);
  }
}

double PlainTraining::pass(const TokenBatch& batch) {
  const double loss = evaluate(batch);
  const ModelUnit& tokens = model_->units().front();
  if (tokens.gradients == GradientMode::kAdd && options_.model.gradients == GradientMode::kAssign) {
    OwnedTensors::Tensor& table = (*tensors_)[tokens.name + ".weight"];
    std::ranges::fill(table.gradient, 0.0f);
    std::ranges::fill(table.rounded_gradient, uint16_t{0});
  }
  for (int use = static_cast<int>(model_->uses().size()) - 1; use >= 0; --use) {
    const UseMemory memory = activations_.with_poisoned_scratch(use);
    model_->set_memory(memory);
    if (options_.recompute) recompute_use(use, memory);
    const int64_t scratch_bytes = activations_.spec().uses[static_cast<size_t>(use)].scratch_bytes;
    // Fills the scratch memory with NaN, because backward must not read its earlier contents.
    std::memset(memory.scratch, 0xFF, static_cast<size_t>(scratch_bytes));
    model_->backward(use);
  }
  tensors_->widen_gradients();
  return loss;
}

void PlainTraining::recompute_use(int use, const UseMemory& memory) {
  const UseActivations& of = activations_.spec().uses[static_cast<size_t>(use)];
  if (!of.recomputable) return;
  std::memset(memory.kept, 0xFF, static_cast<size_t>(of.kept_bytes));  // 0xFF bytes are NaN
  model_->recompute(use);
}

double PlainTraining::update() {
  double squares = 0;
  for (const auto& [name, tensor] : tensors_->tensors()) {
    for (const float g : tensor.gradient) squares += static_cast<double>(g) * static_cast<double>(g);
  }
  const auto scale = static_cast<double>(options_.loss_scale);
  const double norm = std::sqrt(squares) / scale;
  const auto factor = static_cast<float>(std::min(1.0, static_cast<double>(options_.clip) / (norm + 1e-6)) / scale);
  ++step_;
  const float correction_1 = 1.0f - std::pow(options_.beta_1, static_cast<float>(step_));
  const float correction_2 = 1.0f - std::pow(options_.beta_2, static_cast<float>(step_));
  for (auto& [name, tensor] : tensors_->tensors()) {
    Moments& moments = moments_[name];
    moments.first.resize(tensor.parameter.size());
    moments.second.resize(tensor.parameter.size());
    const float decay = tensor.shape.size() > 1 ? options_.weight_decay : 0.0f;
    for (size_t i = 0; i < tensor.parameter.size(); ++i) {
      const float g = tensor.gradient[i] * factor;
      float &p = tensor.parameter[i], &m = moments.first[i], &v = moments.second[i];
      m = options_.beta_1 * m + (1.0f - options_.beta_1) * g;
      v = options_.beta_2 * v + (1.0f - options_.beta_2) * g * g;
      p -= options_.learning_rate * decay * p;
      p -= options_.learning_rate * (m / correction_1) / (std::sqrt(v / correction_2) + options_.epsilon);
    }
  }
  return norm;
}

}  // namespace aliquot::test
