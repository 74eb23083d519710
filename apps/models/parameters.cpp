#include "apps/models/parameters.h"

#include <fmt/format.h>

#include "apps/models/adapters.h"
#include "optim/optimizer.h"

namespace aliquot {
namespace {

class Builder {
 public:
  /// The declarations of a model of `shape`.
  explicit Builder(const ModelShape& shape = {}, const TensorGroup& group = {})
      : trains_base_(!shape.lora.exists()), adapters_(adapter_matrices(shape, group)) {}
  void unit(std::string name, GradientMode gradients = GradientMode::kAssign) {
    model_.units.push_back({std::move(name), {}, gradients});
    model_.uses.push_back({static_cast<UnitId>(model_.units.size()) - 1});
  }
  void tensor(const std::string& name, std::vector<int64_t> shape, const TensorDeclaration& over_tensor = {}) {
    ParameterSpec& added = model_.units.back().parameters.emplace_back();
    added.decayed = is_decayed(shape);
    added.tensor = {model_.units.back().name + "." + name, std::move(shape), DType::kFloat32, trains_base_};
    added.split = over_tensor.split;
    added.partial_gradient = over_tensor.partial_gradient;
  }
  void table(int64_t rows, int64_t width, const TensorDeclaration& over_tensor) {
    tensor("weight", {rows, width}, over_tensor);
    model_.units.back().parameters.back().matrix = false;
  }
  void layer_norm(const std::string& name, int64_t width, const TensorDeclaration& over_tensor) {
    tensor(name + "weight", {width}, over_tensor);
    tensor(name + "bias", {width}, over_tensor);
  }
  /// Adds the adapters of a block.
  void adapters() {
    for (const AdapterMatrix& matrix : adapters_) {
      tensor(matrix.name, matrix.shape, matrix.over_tensor);
      model_.units.back().parameters.back().tensor.trainable = true;
    }
  }
  /// Adds the head. A tied head is a second use of the unit `embedding`.
  void head(const ModelShape& shape, UnitId embedding, const TensorDeclaration& over_tensor) {
    if (shape.tied) {
      model_.uses.push_back({embedding});
      return;
    }
    unit("lm_head");
    table(shape.vocabulary, shape.width, over_tensor);
  }
  ModelSpec take() { return std::move(model_); }

 private:
  ModelSpec model_;
  bool trains_base_;
  std::vector<AdapterMatrix> adapters_;
};

ModelSpec gpt2(const ModelShape& s, const TensorDeclarations& t, Builder b) {
  const int64_t width = s.width;
  b.unit("wte", s.tied ? GradientMode::kAdd : GradientMode::kAssign);
  b.table(s.vocabulary, width, t.table);
  b.unit("wpe");
  b.table(s.context, width, t.norm);
  for (int64_t l = 0; l < s.layers; ++l) {
    b.unit(fmt::format("h.{}", l));
    b.layer_norm("ln_1.", width, t.norm);
    b.tensor("attn.c_attn.weight", {width, 3 * width}, t.packed_columns);
    b.tensor("attn.c_attn.bias", {3 * width}, t.packed_rows);
    b.tensor("attn.c_proj.weight", {width, width}, t.query_rows);
    b.tensor("attn.c_proj.bias", {width});
    b.layer_norm("ln_2.", width, t.norm);
    b.tensor("mlp.c_fc.weight", {width, s.hidden}, t.hidden_columns);
    b.tensor("mlp.c_fc.bias", {s.hidden}, t.hidden_rows);
    b.tensor("mlp.c_proj.weight", {s.hidden, width}, t.hidden_rows);
    b.tensor("mlp.c_proj.bias", {width});
    b.adapters();
  }
  b.unit("ln_f");
  b.layer_norm("", width, t.norm);
  b.head(s, 0, t.table);
  return b.take();
}

ModelSpec llama(const ModelShape& s, const TensorDeclarations& t, Builder b) {
  const int64_t width = s.width, q_width = s.query_width(), kv_width = s.key_width();
  const auto projection = [&](const std::string& name, int64_t outputs, bool biased, const TensorDeclaration& rows) {
    b.tensor(name + ".weight", {outputs, width}, rows);
    if (biased) b.tensor(name + ".bias", {outputs}, rows);
  };
  b.unit("model.embed_tokens", s.tied ? GradientMode::kAdd : GradientMode::kAssign);
  b.table(s.vocabulary, width, t.table);
  for (int64_t l = 0; l < s.layers; ++l) {
    b.unit(fmt::format("model.layers.{}", l));
    b.tensor("input_layernorm.weight", {width}, t.norm);
    projection("self_attn.q_proj", q_width, s.qkv_bias, t.query_rows);
    projection("self_attn.k_proj", kv_width, s.qkv_bias, t.kv_rows);
    projection("self_attn.v_proj", kv_width, s.qkv_bias, t.kv_rows);
    b.tensor("self_attn.o_proj.weight", {width, q_width}, t.query_columns);
    if (s.output_bias) b.tensor("self_attn.o_proj.bias", {width});
    if (s.qk_norm) {
      b.tensor("self_attn.q_norm.weight", {s.head_width()}, t.head_norm);
      b.tensor("self_attn.k_norm.weight", {s.head_width()}, t.head_norm);
    }
    b.tensor("post_attention_layernorm.weight", {width}, t.norm);
    projection("mlp.gate_proj", s.hidden, false, t.hidden_rows);
    projection("mlp.up_proj", s.hidden, false, t.hidden_rows);
    b.tensor("mlp.down_proj.weight", {width, s.hidden}, t.hidden_columns);
    b.adapters();
  }
  b.unit("model.norm");
  b.tensor("weight", {width}, t.norm);
  b.head(s, 0, t.table);
  return b.take();
}

}  // namespace

ModelSpec parameters_of(const ModelShape& shape, const TensorGroup& tensor) {
  const TensorDeclarations declarations(shape, tensor);
  Builder builder(shape, tensor);
  return shape.family == ModelFamily::kGpt2 ? gpt2(shape, declarations, std::move(builder))
                                            : llama(shape, declarations, std::move(builder));
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

namespace {

int64_t count_parameters(const ModelSpec& model, bool only_trained) {
  int64_t count = 0;
  for (const UnitSpec& unit : model.units) {
    for (const ParameterSpec& parameter : unit.parameters) {
      if (parameter.tensor.trainable || !only_trained) count += parameter.tensor.element_count();
    }
  }
  return count;
}

}  // namespace

int64_t parameter_count(const ModelSpec& model) { return count_parameters(model, false); }
int64_t trained_parameter_count(const ModelSpec& model) { return count_parameters(model, true); }

}  // namespace aliquot
