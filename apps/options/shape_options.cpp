#include "apps/options/shape_options.h"

namespace aliquot {
namespace {

constexpr WholeRange kExtent{1, int64_t{1} << 31};

std::vector<std::string> model_names() {
  std::vector<std::string> names;
  for (const ModelPreset& preset : model_presets()) names.emplace_back(preset.name);
  return names;
}

}  // namespace

void add_shape_options(OptionTable& t, ShapeOptions& o) {
  std::string names;
  for (const std::string& name : model_names()) names += (names.empty() ? "" : "|") + name;
  t.add({"model", "NAME", "One of " + names + ".", false,
         [&o](std::string_view text) { o.model = parse_choice(text, model_names()); }, [&o] { return Json(o.model); }});
  t.count("layers", o.layers, kExtent, "Blocks, instead of the model's.");
  t.count("width", o.width, kExtent, "Elements of the residual stream.");
  t.count("heads", o.heads, kExtent, "Heads of attention; they divide the width.");
  t.count("kv-heads", o.kv_heads, kExtent, "Heads of keys and values (llama); they divide the heads.");
  t.count("hidden", o.hidden, kExtent, "Elements inside a feed-forward layer.");
  t.count("context", o.context, kExtent, "The longest sequence.");
  t.count("vocab", o.vocabulary, kExtent, "Entries of the vocabulary.");
}

bool ShapeOptions::names_a_shape() const {
  return model != ShapeOptions().model || layers || width || heads || kv_heads || hidden || context || vocabulary;
}

ModelShape model_shape(const ShapeOptions& o) {
  ModelShape shape = find_model_preset(o.model)->shape;
  const bool plain_hidden = shape.hidden == 4 * shape.width;
  shape.layers = o.layers.value_or(shape.layers);
  shape.width = o.width.value_or(shape.width);
  shape.heads = o.heads.value_or(shape.heads);
  const int64_t kv_default = shape.family == ModelFamily::kGpt2 ? shape.heads : shape.kv_heads;
  shape.kv_heads = o.kv_heads.value_or(kv_default);
  shape.hidden = o.hidden.value_or(plain_hidden ? 4 * shape.width : shape.hidden);
  shape.context = o.context.value_or(shape.context);
  shape.vocabulary = o.vocabulary.value_or(shape.vocabulary);
  check(shape);
  return shape;
}

}  // namespace aliquot
