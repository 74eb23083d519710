// Tests decoding: the logits agree with the loss of training, and are the same with and without a cache.
#include "apps/models/decoding.h"

#include <cmath>
#include <gtest/gtest.h>
#include <numeric>

#include "kernels/system/error.h"
#include "tests/support/plain_training.h"
#include "tests/support/random_values.h"

namespace aliquot::test {
namespace {

constexpr int64_t kSequence = 150;  // more than two strips of attention

struct DecodingCase {
  const char* name;
  ModelShape shape;
};

constexpr Rope kDynamicRope{.theta = 100, .scaling = RopeScaling::kDynamic, .factor = 2};
constexpr Rope kYarnRope{
    .theta = 100, .scaling = RopeScaling::kYarn, .factor = 4, .original_context = 16, .attention_factor = 1.25};
// Every family. Key heads serve one, two or three query heads. Windows are shorter and longer than a strip.
const DecodingCase kCases[] = {
    {"Gpt2", {ModelFamily::kGpt2, 2, 21, 3, 3, 35, 160, 37}},
    {"Gpt2Untied", {ModelFamily::kGpt2, 2, 24, 2, 2, 35, 160, 37, {}, false}},
    {"Llama", {ModelFamily::kLlama, 2, 36, 6, 2, 35, 160, 37}},
    {"LlamaDynamic", {ModelFamily::kLlama, 1, 24, 2, 1, 19, 160, 37, kDynamicRope, false, 1e-5, 0, true, true}},
    {"MistralNarrow", {ModelFamily::kLlama, 2, 20, 3, 1, 19, 160, 37, {}, true, 1e-5, 14, false, false, false, 2}},
    {"MistralWide", {ModelFamily::kLlama, 2, 24, 2, 2, 19, 160, 37, {}, false, 1e-5, 0, false, false, false, 71}},
    {"Qwen2", {ModelFamily::kLlama, 2, 36, 6, 2, 35, 160, 37, {}, true, 1e-2, 0, true, false, false, 9, {false, true}}},
    {"Qwen3", {ModelFamily::kLlama, 2, 36, 6, 2, 35, 160, 37, kYarnRope, true, 1e-2, 10, false, false, true}},
};

std::vector<int32_t> some_tokens(int64_t count, int64_t vocabulary) {
  RandomValues random(5);
  std::vector<int32_t> tokens;
  for (int64_t i = 0; i < count; ++i)
    tokens.push_back(static_cast<int32_t>(random.bits() % static_cast<uint64_t>(vocabulary)));
  return tokens;
}

class Decoding : public testing::TestWithParam<DecodingCase> {
 protected:
  /// A model whose weights are large enough that the logits depend on all positions.
  static std::unique_ptr<PlainTraining> make(DType compute = DType::kFloat32, int threads = 1) {
    PlainOptions options;
    options.shape = GetParam().shape;
    options.model = {.batch = 2, .sequence = kSequence, .compute = compute, .decode_positions = kSequence};
    options.threads = threads;
    auto training = std::make_unique<PlainTraining>(options);
    RandomValues random(11);
    for (auto& [name, tensor] : training->tensors().tensors()) {
      for (float& p : tensor.parameter) p += 0.3f * static_cast<float>(random.uniform());
    }
    return training;
  }
  static KeyValueCache make_cache(Device& device, DType type = DType::kFloat32, int64_t capacity = kSequence) {
    return {device, GetParam().shape, capacity, type};
  }
  static std::vector<int32_t> tokens() { return some_tokens(kSequence, GetParam().shape.vocabulary); }

  const std::unique_ptr<Device> device_ = make_host_device(1);
};
INSTANTIATE_TEST_SUITE_P(Models, Decoding, testing::ValuesIn(kCases),
                         [](const auto& test) { return std::string(test.param.name); });

double loss_of(const std::vector<float>& logits, int32_t target) {
  double sum = 0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit));
  return std::log(sum) - static_cast<double>(logits[static_cast<size_t>(target)]);
}

/// Only one target counts, so the loss of training is that of one row of logits.
TEST_P(Decoding, LogitsWithoutACacheHaveTheLossOfTraining) {
  const auto training = make();
  const std::vector<int32_t> all = tokens();
  std::vector<int32_t> batch = all;
  batch.insert(batch.end(), all.begin(), all.end());
  for (const size_t count : {size_t{1}, size_t{2}, size_t{64}, size_t{65}, static_cast<size_t>(kSequence)}) {
    const int32_t target = static_cast<int32_t>(count) % 37;
    std::vector<int32_t> targets(batch.size(), kIgnoredTarget);
    targets[count - 1] = target;
    const double loss = training->evaluate({batch, targets}) * static_cast<double>(training->token_count());
    const auto logits = training->decode({std::span(all).first(count)});
    ASSERT_EQ(logits.size(), 37u);
    EXPECT_NEAR(loss_of(logits, target), loss, 2e-6 * (1 + std::abs(loss))) << count;
  }
}

/// Runs the sequence in passes of several sizes. After each pass, compares the logits with those of a pass over the
/// whole sequence so far, which computes all keys and values again.
TEST_P(Decoding, TheCacheChangesNoBit) {
  const auto cached = make(), plain = make(DType::kFloat32, 3);
  KeyValueCache cache = make_cache(*device_);
  const std::vector<int32_t> all = tokens();
  size_t done = 0;
  for (const size_t count : {1, 1, 5, 60, 1, 1, 3, 70, 1, 7}) {
    const auto part = std::span(all).subspan(done, count);
    const auto logits = cached->decode({part, &cache});
    done += count;
    cache.set_length(static_cast<int64_t>(done));
    EXPECT_EQ(logits, plain->decode({std::span(all).first(done)})) << done;
  }
  ASSERT_EQ(done, all.size());
  // Begins again: earlier contents of the cache have no effect.
  cache.set_length(0);
  EXPECT_EQ(cached->decode({std::span(all).first(3), &cache}), plain->decode({std::span(all).first(3)}));
}

TEST_P(Decoding, TheCacheChangesNoBitIn16Bits) {
  for (const DType type : {DType::kBFloat16, DType::kFloat16}) {
    const auto cached = make(type), plain = make(type);
    KeyValueCache cache = make_cache(*device_, type);
    const std::vector<int32_t> all = tokens();
    for (size_t done = 0; done < 100; ++done) {
      const auto logits = cached->decode({std::span(all).subspan(done, 1), &cache});
      cache.set_length(static_cast<int64_t>(done) + 1);
      EXPECT_EQ(logits, plain->decode({std::span(all).first(done + 1)})) << done;
    }
  }
}

/// Passes of decoding use the memory of a micro-batch. Training afterwards gives the same bits as without them.
TEST_P(Decoding, TrainingContinuesAfterDecoding) {
  const auto with = make(), without = make();
  const std::vector<int32_t> all = tokens();
  std::vector<int32_t> batch = all;
  batch.insert(batch.end(), all.rbegin(), all.rend());
  with->pass({batch, batch});
  without->pass({batch, batch});
  KeyValueCache cache = make_cache(*device_);
  with->decode({std::span(all).first(7), &cache});
  with->update();
  without->update();
  EXPECT_EQ(with->pass({batch, batch}), without->pass({batch, batch}));
}

TEST(DecodingRefusals, NameTheLimit) {
  PlainOptions options;
  options.shape = {ModelFamily::kGpt2, 1, 8, 1, 1, 16, 32, 11};
  options.model = {.batch = 1, .sequence = 8, .decode_positions = 16};
  PlainTraining training(options);
  const auto device = make_host_device(1);
  KeyValueCache cache(*device, options.shape, 10, DType::kFloat32);
  const std::vector<int32_t> tokens(20, 3), large{11};
  const auto decode = [&](size_t count, KeyValueCache* with = nullptr) {
    return training.decode({std::span(tokens).first(count), with});
  };
  EXPECT_THROW(decode(0), UsageError);
  EXPECT_THROW(decode(9), UsageError);  // a sequence of a micro-batch has 8
  EXPECT_NO_THROW(decode(8, &cache));
  cache.set_length(8);
  EXPECT_THROW(decode(3, &cache), UsageError);  // the cache has 10
  EXPECT_NO_THROW(decode(2, &cache));
  EXPECT_THROW(training.decode({large}), UsageError);
  options.model.decode_positions = 33;
  EXPECT_THROW(PlainTraining{options}, UsageError);  // the context has 32
  options.model.decode_positions = 0;
  PlainTraining other(options);
  EXPECT_THROW(other.decode({std::span(tokens).first(1)}), UsageError);
}

}  // namespace
}  // namespace aliquot::test
