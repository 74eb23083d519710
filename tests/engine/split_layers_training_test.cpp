// Trains a small model whose ranks divide an embedding, a norm and a loss with the functions of split_layers.h.
#include <cmath>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <vector>

#include "engine/engine.h"
#include "kernels/layers/split_layers.h"

namespace aliquot {
namespace {

constexpr int64_t kRows = 6, kWidth = 7, kEntries = 11;
constexpr int kSteps = 6;
constexpr int64_t kAligned = 1024;  // bytes of each area of the scratch memory
static_assert(kRows * kEntries * 4 <= kAligned && 4 * 3 * kRows * 4 <= kAligned);

/// Logits = norm(table[tokens]) * head. The ranks divide the rows of the table, the columns of the norm and of the
/// head, and the vocabulary of the loss.
class SplitModel {
 public:
  SplitModel(Engine& engine, int rank)
      : tensor_(engine.options().tensor),
        rank_(rank),
        columns_(rank_range(kWidth, rank, tensor_)),
        entries_(rank_range(kEntries, rank, tensor_)) {
    engine.add_unit("embedding").add("table", {kEntries, kWidth}, &table_, &d_table_, {.split = Split::rows()});
    engine.add_unit("head")
        .add("weight", {kWidth}, &weight_, &d_weight_, {.split = Split::rows()})
        .add("bias", {kWidth}, &bias_, &d_bias_, {.split = Split::rows()})
        .add("table", {kEntries, kWidth}, &head_, &d_head_, {.split = Split::columns()});
    engine.declare_activations(
        {.uses = {embedding_activations(), head_activations()}, .backward_bytes = stream_bytes()});
    y_.resize(static_cast<size_t>(kRows * width()));
    logits_.resize(kRows * kEntries);
  }

  void load(int step) {
    for (int64_t row = 0; row < kRows; ++row) {
      tokens_[row] = static_cast<int32_t>((3 * row + step) % kEntries);
      targets_[row] = static_cast<int32_t>((5 * row + 2 * step) % kEntries);
    }
    targets_[2] = kIgnoredTarget;
  }

  void forward_embedding(const UseMemory& memory) {
    split_embedding_forward(embedding(), table_, static_cast<float*>(memory.output));
    memory.run("embedding");
  }

  /// Returns the loss.
  double forward_head(const UseMemory& memory) {
    x_ = own_columns(static_cast<const float*>(memory.input));
    const LayerNormRows norm{x_.data(), weight_, bias_, mean_, rstd_, y_.data(), kRows, width()};
    split_norm_statistics(norm, own_part(memory, 0));
    memory.run("norm");
    split_norm_forward(norm, parts(memory, 0));
    float* logits = area(memory, 1);
    for (int64_t row = 0; row < kRows; ++row) {
      for (int64_t entry = 0; entry < kEntries; ++entry) {
        float& logit = logits[row * kEntries + entry] = 0;
        for (int64_t c = 0; c < width(); ++c)
          logit += y_[static_cast<size_t>(row * width() + c)] * head_[entry * width() + c];
      }
    }
    memory.run("logits");
    std::copy(logits, logits + kRows * kEntries, logits_.begin());
    split_loss_statistics(own_logits(), targets_, own_part(memory, 2));
    memory.run("loss");
    double sum = 0;
    split_loss_forward({parts(memory, 2), kRows, targets_, maxima_, log_sums_, &sum});
    return sum / (kRows - 1);
  }

  void backward_head(const UseMemory& memory) {
    split_loss_backward(own_logits(), {maxima_, log_sums_, targets_, 1.0f / (kRows - 1)});
    float* d_logits = area(memory, 1);
    for (int64_t i = 0; i < kRows * kEntries; ++i) {
      const bool own = entries_.first <= i % kEntries && i % kEntries < entries_.second;
      d_logits[i] = own ? logits_[static_cast<size_t>(i)] : 0;
    }
    memory.run("logit gradients");
    std::vector<float> dy(y_.size()), dx(y_.size());
    for (int64_t row = 0; row < kRows; ++row) {
      for (int64_t entry = 0; entry < kEntries; ++entry) {
        const float d_logit = d_logits[row * kEntries + entry];
        for (int64_t c = 0; c < width(); ++c) {
          dy[static_cast<size_t>(row * width() + c)] += d_logit * head_[entry * width() + c];
          d_head_[entry * width() + c] += d_logit * y_[static_cast<size_t>(row * width() + c)];
        }
      }
    }
    const LayerNormBackwardRows norm{x_.data(), weight_, mean_, rstd_, dy.data(), dx.data(), kRows, width()};
    split_norm_backward_statistics(norm, own_part(memory, 0));
    memory.run("norm gradient");
    split_norm_backward(norm, parts(memory, 0));
    split_norm_backward_weights(
        {x_.data(), mean_, rstd_, dy.data(), d_weight_, d_bias_, kRows, width(), 0, width(), true});
    auto* d_stream = static_cast<float*>(memory.backward);
    std::fill(d_stream, d_stream + kRows * kWidth, 0.0f);
    for (int64_t i = 0; i < kRows * width(); ++i)
      d_stream[i / width() * kWidth + columns_.first + i % width()] = dx[static_cast<size_t>(i)];
    memory.run("stream gradient");
  }

  void backward_embedding(const UseMemory& memory) {
    split_embedding_backward(embedding(), static_cast<const float*>(memory.backward), d_table_, 0, kWidth);
  }

 private:
  int64_t width() const { return columns_.second - columns_.first; }
  static int64_t stream_bytes() { return kRows * kWidth * 4 + 1024; }  // with space for full parts of all ranks

  UseActivations embedding_activations() const {
    return {.output_bytes = stream_bytes(),
            .collectives = {{.name = "embedding", .rows = kRows, .row_elements = kWidth}}};
  }

  UseActivations head_activations() const {
    const auto gather = [&](const char* name, UsePart part, int64_t at) {
      return UseCollective{.name = name,
                           .kind = CollectiveKind::kGather,
                           .part = part,
                           .buffer = UseBuffer::kScratch,
                           .offset_bytes = at * kAligned,
                           .rows = tensor_,
                           .row_elements = split_part_elements(kRows)};
    };
    UseCollective logits{.name = "logits",
                         .buffer = UseBuffer::kScratch,
                         .offset_bytes = kAligned,
                         .rows = kRows,
                         .row_elements = kEntries};
    UseCollective d_logits = logits;
    d_logits.name = "logit gradients", d_logits.part = UsePart::kBackward;
    const UseCollective d_stream{.name = "stream gradient",
                                 .part = UsePart::kBackward,
                                 .buffer = UseBuffer::kBackward,
                                 .rows = kRows,
                                 .row_elements = kWidth};
    return {.scratch_bytes = 3 * kAligned,
            .collectives = {gather("norm", UsePart::kForward, 0), logits, gather("loss", UsePart::kForward, 2),
                            d_logits, gather("norm gradient", UsePart::kBackward, 0), d_stream}};
  }

  static float* area(const UseMemory& memory, int64_t index) {
    return reinterpret_cast<float*>(static_cast<std::byte*>(memory.scratch) + index * kAligned);
  }
  float* own_part(const UseMemory& memory, int64_t index) const {
    return area(memory, index) + rank_ * split_part_elements(kRows);
  }
  SplitParts parts(const UseMemory& memory, int64_t index) const { return {tensor_, area(memory, index)}; }
  EmbeddingRows embedding() const { return {tokens_, kRows, kWidth, entries_.second - entries_.first, entries_.first}; }
  LogitTile own_logits() {
    return {logits_.data() + entries_.first, kEntries, kRows, entries_.second - entries_.first, entries_.first};
  }
  std::vector<float> own_columns(const float* stream) const {
    std::vector<float> own;
    for (int64_t row = 0; row < kRows; ++row)
      own.insert(own.end(), stream + row * kWidth + columns_.first, stream + row * kWidth + columns_.second);
    return own;
  }

  int tensor_, rank_;
  std::pair<int64_t, int64_t> columns_, entries_;
  float *table_ = nullptr, *d_table_ = nullptr, *weight_ = nullptr, *d_weight_ = nullptr, *bias_ = nullptr,
        *d_bias_ = nullptr, *head_ = nullptr, *d_head_ = nullptr;
  int32_t tokens_[kRows], targets_[kRows];
  float mean_[kRows], rstd_[kRows], maxima_[kRows], log_sums_[kRows];
  std::vector<float> x_, y_, logits_;
};

std::vector<double> losses(int tensor, int stage) {
  std::vector<double> all;
  World::threads(tensor, [&](World& world) {
    Engine engine(world, {.zero_stage = stage, .tensor = tensor, .optimizer = AdamW{.lr = 0.05f}, .clip = 1.0});
    SplitModel model(engine, world.rank());
    engine.materialize([](const ParameterSpec&, int64_t offset, std::span<float> values) {
      for (float& value : values) value = std::sin(1.7f * static_cast<float>(offset++)) + 0.3f;
    });
    for (int step = 0; step < kSteps; ++step) {
      engine.micro_batch();
      model.load(step);
      double loss = 0;
      {
        const auto live = engine.units()[0].forward();
        model.forward_embedding(live.memory());
      }
      {
        const auto live = engine.units()[1].forward();
        loss = model.forward_head(live.memory());
      }
      {
        const auto live = engine.units()[1].backward();
        model.backward_head(live.memory());
      }
      {
        const auto live = engine.units()[0].backward();
        model.backward_embedding(live.memory());
      }
      ASSERT_FALSE(engine.step().skipped);
      if (world.rank() == 0) all.push_back(loss);
    }
  });
  return all;
}

TEST(SplitLayersTraining, GivesTheLossesOfOneRank) {
  const std::vector<double> whole = losses(1, 0);
  ASSERT_EQ(whole.size(), static_cast<size_t>(kSteps));
  EXPECT_LT(whole.back(), whole.front() - 0.5) << "the model does not learn";
  for (const int tensor : {2, 3, 4}) {
    for (const int stage : {0, 3}) {
      const std::vector<double> split = losses(tensor, stage);
      ASSERT_EQ(split.size(), whole.size());
      for (size_t step = 0; step < whole.size(); ++step)
        EXPECT_NEAR(split[step], whole[step], 1e-5 * whole[step])
            << fmt::format("{} ranks, ZeRO stage {}, step {}", tensor, stage, step);
    }
  }
}

}  // namespace
}  // namespace aliquot
