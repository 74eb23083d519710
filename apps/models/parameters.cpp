#include "apps/models/parameters.h"

#include <fmt/format.h>

#include "optim/optimizer.h"

namespace aliquot {
namespace {

class Builder {
 public:
  void unit(std::string name, GradientMode gradients = GradientMode::kAssign) {
    model_.units.push_back({std::move(name), {}, gradients});
    model_.uses.push_back({static_cast<UnitId>(model_.units.size()) - 1});
  }
  void tensor(const std::string& name, std::vector<int64_t> shape) {
    const bool decayed = is_decayed(shape);
    model_.units.back().parameters.push_back(
        {{model_.units.back().name + "." + name, std::move(shape), DType::kFloat32, true}, decayed, 1.0f});
  }
  void table(int64_t rows, int64_t width) {
    tensor("weight", {rows, width});
    model_.units.back().parameters.back().matrix = false;
  }
  void layer_norm(const std::string& name, int64_t width) {
    tensor(name + ".weight", {width});
    tensor(name + ".bias", {width});
  }
  /// Adds a weight matrix and its bias. GPT-2 stores weight matrices as [inputs, outputs].
  void product(const std::string& name, int64_t inputs, int64_t outputs) {
    tensor(name + ".weight", {inputs, outputs});
    tensor(name + ".bias", {outputs});
  }
  /// Adds a weight matrix [outputs, inputs] and its bias, if it has one.
  void projection(const std::string& name, int64_t inputs, int64_t outputs, bool biased) {
    tensor(name + ".weight", {outputs, inputs});
    if (biased) tensor(name + ".bias", {outputs});
  }
  /// Adds the head. A tied head is a second use of the unit `embedding`.
  void head(const ModelShape& shape, UnitId embedding) {
    if (shape.tied) {
      model_.uses.push_back({embedding});
      return;
    }
    unit("lm_head");
    table(shape.vocabulary, shape.width);
  }
  ModelSpec take() { return std::move(model_); }

 private:
  ModelSpec model_;
};

ModelSpec gpt2(const ModelShape& s) {
  Builder b;
  b.unit("wte", s.tied ? GradientMode::kAdd : GradientMode::kAssign);
  b.table(s.vocabulary, s.width);
  b.unit("wpe");
  b.table(s.context, s.width);
  for (int64_t l = 0; l < s.layers; ++l) {
    b.unit(fmt::format("h.{}", l));
    b.layer_norm("ln_1", s.width);
    b.product("attn.c_attn", s.width, 3 * s.width);
    b.product("attn.c_proj", s.width, s.width);
    b.layer_norm("ln_2", s.width);
    b.product("mlp.c_fc", s.width, s.hidden);
    b.product("mlp.c_proj", s.hidden, s.width);
  }
  b.unit("ln_f");
  b.tensor("weight", {s.width});
  b.tensor("bias", {s.width});
  b.head(s, 0);
  return b.take();
}

ModelSpec llama(const ModelShape& s) {
  const bool tied = s.tied;
  const int64_t q_width = s.query_width(), kv_width = s.key_width();
  Builder b;
  b.unit("model.embed_tokens", tied ? GradientMode::kAdd : GradientMode::kAssign);
  b.table(s.vocabulary, s.width);
  for (int64_t l = 0; l < s.layers; ++l) {
    b.unit(fmt::format("model.layers.{}", l));
    b.tensor("input_layernorm.weight", {s.width});
    b.projection("self_attn.q_proj", s.width, q_width, s.qkv_bias);
    b.projection("self_attn.k_proj", s.width, kv_width, s.qkv_bias);
    b.projection("self_attn.v_proj", s.width, kv_width, s.qkv_bias);
    b.projection("self_attn.o_proj", q_width, s.width, s.output_bias);
    if (s.qk_norm) {
      b.tensor("self_attn.q_norm.weight", {s.head_width()});
      b.tensor("self_attn.k_norm.weight", {s.head_width()});
    }
    b.tensor("post_attention_layernorm.weight", {s.width});
    b.tensor("mlp.gate_proj.weight", {s.hidden, s.width});
    b.tensor("mlp.up_proj.weight", {s.hidden, s.width});
    b.tensor("mlp.down_proj.weight", {s.width, s.hidden});
  }
  b.unit("model.norm");
  b.tensor("weight", {s.width});
  b.head(s, 0);
  return b.take();
}

}  // namespace

ModelSpec parameters_of(const ModelShape& shape) {
  return shape.family == ModelFamily::kGpt2 ? gpt2(shape) : llama(shape);
}

ModelSpec make_equal_units(int64_t parameter_count, int64_t unit_count) {
  Builder b;
  for (int64_t u = 0; u < unit_count; ++u) {
    const int64_t each = parameter_count / unit_count;
    b.unit(fmt::format("unit.{}", u));
    b.tensor("weight", {u + 1 < unit_count ? each : parameter_count - each * (unit_count - 1)});
  }
  return b.take();
}

int64_t parameter_count(const ModelSpec& model) {
  int64_t count = 0;
  for (const UnitSpec& unit : model.units) {
    for (const ParameterSpec& parameter : unit.parameters) count += parameter.tensor.element_count();
  }
  return count;
}

}  // namespace aliquot
