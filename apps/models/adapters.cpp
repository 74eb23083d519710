#include "apps/models/adapters.h"

#include <array>
#include <cmath>

namespace aliquot {
namespace {

using enum Projection;
constexpr std::array kOfGpt2{ProjectionNames{kPacked, "qkv", "attn.c_attn"},
                             ProjectionNames{kOutput, "o", "attn.c_proj"}, ProjectionNames{kUp, "up", "mlp.c_fc"},
                             ProjectionNames{kDown, "down", "mlp.c_proj"}};
constexpr std::array kOfLlama{
    ProjectionNames{kQuery, "q", "self_attn.q_proj"}, ProjectionNames{kKey, "k", "self_attn.k_proj"},
    ProjectionNames{kValue, "v", "self_attn.v_proj"}, ProjectionNames{kOutput, "o", "self_attn.o_proj"},
    ProjectionNames{kGate, "gate", "mlp.gate_proj"},  ProjectionNames{kUp, "up", "mlp.up_proj"},
    ProjectionNames{kDown, "down", "mlp.down_proj"}};

struct Extents {
  int64_t inputs, outputs;
};

Extents extents_of(const ModelShape& s, Projection p) {
  switch (p) {
    case kQuery: return {s.width, s.query_width()};
    case kKey:
    case kValue: return {s.width, s.key_width()};
    case kPacked: return {s.width, s.query_width() + 2 * s.key_width()};
    case kOutput: return {s.query_width(), s.width};
    case kGate:
    case kUp: return {s.width, s.hidden};
    case kDown: break;
  }
  return {s.hidden, s.width};
}

/// The declaration of the matrix that has the divided dimension of the linear layer.
TensorDeclaration declaration_of(const TensorDeclarations& t, Projection p) {
  switch (p) {
    case kQuery: return t.query_rows;
    case kKey:
    case kValue: return t.kv_rows;
    case kPacked: return t.packed_rows;
    case kOutput: return t.query_columns;
    case kGate:
    case kUp: return t.hidden_rows;
    case kDown: break;
  }
  return t.hidden_columns;
}

}  // namespace

std::span<const ProjectionNames> projections_of(ModelFamily family) {
  if (family == ModelFamily::kGpt2) return kOfGpt2;
  return kOfLlama;
}

bool divides_inputs(Projection p) { return p == kOutput || p == kDown; }

std::vector<AdapterMatrix> adapter_matrices(const ModelShape& shape, const TensorGroup& tensor) {
  std::vector<AdapterMatrix> matrices;
  const TensorDeclarations declarations(shape, tensor);
  const TensorDeclaration full{{}, tensor.ranks > 1};
  for (const ProjectionNames& names : projections_of(shape.family)) {
    const Projection p = names.projection;
    if (!shape.lora.adapts(p)) continue;
    const Extents extents = extents_of(shape, p);
    const float bound = 1.0f / std::sqrt(static_cast<float>(extents.inputs));
    const TensorDeclaration divided = declaration_of(declarations, p);
    const std::string path(names.path);
    matrices.push_back({p,
                        false,
                        path + std::string(kLoraA),
                        {shape.lora.rank, extents.inputs},
                        {Initializer::Kind::kUniform, bound},
                        divides_inputs(p) ? divided : full});
    matrices.push_back({p,
                        true,
                        path + std::string(kLoraB),
                        {extents.outputs, shape.lora.rank},
                        {Initializer::Kind::kZero},
                        divides_inputs(p) ? full : divided});
  }
  return matrices;
}

}  // namespace aliquot
