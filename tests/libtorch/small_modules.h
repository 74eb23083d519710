#pragma once
// LibTorch modules as users write them, for the tests of libtorch/.

#include <cmath>
#include <torch/torch.h>

#include "libtorch/call.h"

namespace aliquot::testing_torch {

inline constexpr int64_t kVocabulary = 29, kContext = 8, kWidth = 16, kHeads = 2, kLayers = 3;

struct BlockImpl : torch::nn::Module {
  torch::nn::LayerNorm before_attention{torch::nn::LayerNormOptions({kWidth})};
  torch::nn::LayerNorm before_mlp{torch::nn::LayerNormOptions({kWidth})};
  torch::nn::Linear qkv{kWidth, 3 * kWidth}, project{kWidth, kWidth}, up{kWidth, 4 * kWidth}, down{4 * kWidth, kWidth};

  BlockImpl() {
    register_module("ln_1", before_attention);
    register_module("qkv", qkv);
    register_module("project", project);
    register_module("ln_2", before_mlp);
    register_module("up", up);
    register_module("down", down);
  }

  torch::Tensor attend(const torch::Tensor& x) {
    const auto parts = qkv(x).view({x.size(0), x.size(1), 3, kHeads, kWidth / kHeads}).permute({2, 0, 3, 1, 4});
    const auto mask = torch::full({x.size(1), x.size(1)}, -INFINITY, x.options()).triu(1);
    const auto scores = torch::matmul(parts[0], parts[1].transpose(-1, -2)) / std::sqrt(double{kWidth} / kHeads) + mask;
    return project(torch::matmul(scores.softmax(-1), parts[2]).transpose(1, 2).reshape(x.sizes()));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    const torch::Tensor attended = x + attend(before_attention(x));
    return attended + down(torch::gelu(up(before_mlp(attended))));
  }
};
TORCH_MODULE(Block);

/// A head that shares the embedding's weights.
struct TiedHeadImpl : torch::nn::Module {
  torch::Tensor weight;
  explicit TiedHeadImpl(const torch::Tensor& table) : weight(register_parameter("weight", table)) {}
  torch::Tensor forward(const torch::Tensor& x) { return torch::linear(x, weight); }
};
TORCH_MODULE(TiedHead);

/// A small GPT. Its head shares the weights of its embedding.
struct Gpt : torch::nn::Module {
  torch::nn::Embedding tokens{kVocabulary, kWidth}, positions{kContext, kWidth};
  torch::nn::ModuleList blocks;
  torch::nn::LayerNorm last{torch::nn::LayerNormOptions({kWidth})};
  TiedHead head{tokens->weight};

  Gpt() {
    register_module("wte", tokens);
    register_module("wpe", positions);
    for (int64_t l = 0; l < kLayers; ++l) blocks->push_back(Block());
    register_module("h", blocks);
    register_module("ln_f", last);
    register_module("head", head);
  }

  /// Sets the same values on every rank, independent of any random generator.
  void initialize() {
    const torch::NoGradGuard none;
    for (auto& each : named_parameters()) {
      const auto count = torch::arange(each.value().numel(), torch::kFloat);
      const bool is_norm =
          each.key().find("ln_") != std::string::npos && each.key().find("weight") != std::string::npos;
      each.value().copy_(
          (torch::sin(count * 0.7 + static_cast<double>(each.key().size())) * 0.2 + (is_norm ? 1.0 : 0.0))
              .view(each.value().sizes()));
    }
  }

  torch::Tensor forward(const torch::Tensor& ids) {
    // One call per statement, because C++ does not define the order of calls within a statement.
    torch::Tensor x = call(tokens, ids);
    x = x + call(positions, torch::arange(ids.size(1)).expand_as(ids));
    for (const auto& block : *blocks) x = call(*block->as<Block>(), x);
    return call(head, call(last, x));
  }
};

}  // namespace aliquot::testing_torch
