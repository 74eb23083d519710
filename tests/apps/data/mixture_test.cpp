// Several files of tokens with weights.
#include "apps/data/mixture.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "apps/data/loader.h"
#include "kernels/system/error.h"
#include "tests/apps/tokenize/support.h"

namespace aliquot::test {
namespace {

using testing::HasSubstr;

TEST(Mixture, EachPartHasItsShareOfEachPrefix) {
  for (const std::vector<double>& weights :
       {std::vector<double>{0.7, 0.3}, {1, 1, 1}, {5, 0.006}, {100, 20, 3, 1}, {0.123, 0.877}, {4, 4, 4, 4, 1, 1, 1}}) {
    const Mixture mixture(weights);
    double sum = 0;
    for (const double weight : weights) sum += weight;
    std::vector<int64_t> counts(weights.size());
    for (int64_t position = 0; position < 3500; ++position) {
      const auto place = mixture.at(position);
      ASSERT_EQ(place.index, counts[place.part]++);
      for (size_t part = 0; part < weights.size(); ++part) {
        // Weights are rounded to thousandths, so the difference grows by up to 1 in each period of 1000.
        const double share = weights[part] / sum * static_cast<double>(position + 1);
        ASSERT_LT(std::abs(static_cast<double>(counts[part]) - share), 1 + static_cast<double>(position + 1) / 1000);
      }
    }
  }
}

TEST(Mixture, LargePositionsAreComputedAlone) {
  const Mixture mixture(std::array{0.7, 0.3});
  const auto place = mixture.at(int64_t{1} << 50);
  const int64_t periods = (int64_t{1} << 50) / 1000, quota = place.part == 0 ? 700 : 300;
  EXPECT_GE(place.index, periods * quota);
  EXPECT_LT(place.index, (periods + 1) * quota);
}

TEST(Mixture, OnePartHasAllPositions) {
  const Mixture mixture(std::array{2.0});
  EXPECT_EQ(mixture.at(12345).index, 12345);
  EXPECT_EQ(mixture.at(12345).part, 0u);
}

/// Exact shares: counts differ from them by less than 1 at every position.
TEST(Mixture, SharesInThousandthsAreKeptToWithinOnePosition) {
  for (const std::vector<double>& weights :
       {std::vector<double>{700, 300}, {997, 1, 1, 1}, {500, 250, 125, 125}, {1, 2, 3, 4, 5, 985}}) {
    const Mixture mixture(weights);
    std::vector<int64_t> counts(weights.size());
    for (int64_t position = 0; position < 2500; ++position) {
      ++counts[mixture.at(position).part];
      for (size_t part = 0; part < weights.size(); ++part)
        ASSERT_LT(std::abs(1000 * counts[part] - static_cast<int64_t>(weights[part]) * (position + 1)), 1000);
    }
  }
}

TEST(Mixture, TinyWeightsAreRefused) {
  EXPECT_THROW(Mixture(std::array{1.0, 0.0001}), UsageError);
  EXPECT_THROW(Mixture(std::vector<double>(1001, 1.0)), UsageError);
  EXPECT_NO_THROW(Mixture(std::vector<double>(1000, 1.0)));
}

/// Two files: 16-bit tokens 0, 1, ... 999, and 8-bit tokens 200 in file b.
class MixedFiles : public testing::Test {
 protected:
  static std::string numbers() {
    std::string bytes;
    for (int i = 0; i < 1000; ++i) bytes.append({static_cast<char>(i & 255), static_cast<char>(i >> 8)});
    return bytes;
  }
  std::string refusal(const std::string& files) const {
    try {
      open_token_sources(files);
    } catch (const UsageError& error) {
      return error.what();
    }
    return "";
  }

  const TestFolder folder_;
  const std::string a_ = folder_.write("a.bin", numbers()), b_ = folder_.write("b.txt", std::string(501, '\xc8'));
};

TEST_F(MixedFiles, TokensAreThoseOfTheFilesInOrder) {
  const auto source = open_token_sources(a_ + ":2," + b_ + ":1");
  ASSERT_EQ(source->token_count(), 1501);
  std::vector<int32_t> tokens(1501);
  source->read(0, tokens, 1000);
  for (int i = 0; i < 1501; ++i) ASSERT_EQ(tokens[static_cast<size_t>(i)], i < 1000 ? i : 200);
  EXPECT_EQ(source->find_out_of_range(0, 1501, 1000), std::nullopt);
  EXPECT_EQ(source->find_out_of_range(0, 1501, 900), 900);
  EXPECT_EQ(source->find_out_of_range(990, 511, 200), 990);
  EXPECT_EQ(open_token_sources(b_ + ":1," + a_ + ":2")->find_out_of_range(0, 1501, 300), 501 + 300);
  EXPECT_EQ(source->find_out_of_range(1000, 501, 200), 1000);
}

// The rank count and a restart at any step do not change the sequences of the global batches.
TEST_F(MixedFiles, TheOrderDependsOnlyOnThePosition) {
  const auto source = open_token_sources(a_ + ":0.7," + b_ + ":0.3");
  const auto sequences = [&](int ranks, int64_t micro_batch, int64_t accumulate) {
    std::vector<int32_t> first_tokens;
    for (int64_t consumed = 0; consumed < 480; consumed += 8) {
      for (int64_t micro = 0; micro < accumulate; ++micro) {
        for (int rank = 0; rank < ranks; ++rank) {
          Loader loader(*source, {10, micro_batch, 1000, true, 1, rank, ranks});  // a new loader, as after a resume
          loader.load(consumed, micro);
          for (int64_t b = 0; b < micro_batch; ++b)
            first_tokens.push_back(loader.tokens()[static_cast<size_t>(b * 10)]);
        }
      }
    }
    return first_tokens;
  };
  const auto one = sequences(1, 8, 1);
  EXPECT_EQ(one, sequences(4, 2, 1));
  EXPECT_EQ(one, sequences(2, 1, 4));
  // File b has only the token 200, which also begins sequence 20 of file a.
  const auto of_a = [](int32_t token) { return token != 200; };
  EXPECT_NEAR(static_cast<double>(std::ranges::count_if(one, of_a)), 0.7 * 480, 12);
}

TEST_F(MixedFiles, TheFirstFileHasItsUsualOrder) {
  const auto mixed = open_token_sources(a_ + ":1," + b_ + ":1"), alone = open_token_source(a_);
  Loader both(*mixed, {10, 1, 1000, true, 5, 0, 1}), one(*alone, {10, 1, 1000, true, 5, 0, 1});
  for (int64_t position = 0; position < 400; position += 2) {
    both.load(position, 0);
    one.load(position / 2, 0);
    ASSERT_EQ(both.tokens(), one.tokens());
  }
  EXPECT_EQ(both.sequence_count(), 99 + 50);
}

TEST_F(MixedFiles, InvalidListsAreRefused) {
  for (const std::string& list :
       {a_ + ":1," + b_, a_ + ":1," + b_ + ":0", a_ + ":1," + b_ + ":-1", a_ + ":x," + b_ + ":1"})
    EXPECT_THAT(refusal(list), HasSubstr("expected FILE, or FILE:WEIGHT,FILE:WEIGHT")) << list;
  EXPECT_THAT(refusal(a_ + ":1,," + b_ + ":1"), HasSubstr("for --data: '' is not FILE:WEIGHT"));
  EXPECT_THAT(refusal(a_ + ":1," + b_ + ":1e-5"), HasSubstr("for --data: the weight 1e-05 is too small"));
  EXPECT_THAT(refusal(a_ + ":1," + b_ + ".none:1"), HasSubstr("b.txt.none: No such file"));
  EXPECT_THAT(refusal(b_ + ".none"), HasSubstr("--data"));
  const auto source = open_token_sources(a_ + ":1," + b_ + ":1");
  EXPECT_THROW(Loader(*source, {600, 1, 1000, true, 1, 0, 1}), UsageError) << "file b has 501 tokens";
}

TEST_F(MixedFiles, AnExistingNameIsOneFile) {
  EXPECT_EQ(open_token_sources(a_ + ":0.5")->token_count(), 1000);
  EXPECT_EQ(open_token_sources(folder_.write("a.bin:0.5", "abc"))->token_count(), 3);
}

}  // namespace
}  // namespace aliquot::test
