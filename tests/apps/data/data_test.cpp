#include <algorithm>
#include <filesystem>
#include <fstream>
#include <gtest/gtest.h>
#include <set>
#include <unistd.h>

#include "apps/data/loader.h"
#include "kernels/system/error.h"

namespace aliquot::test {
namespace {

class TemporaryFile {
 public:
  TemporaryFile(const std::string& ending, const std::string& bytes)
      : path_(std::filesystem::temp_directory_path() / ("aliquot_data_" + std::to_string(getpid()) + ending)) {
    std::ofstream(path_, std::ios::binary) << bytes;
  }
  ~TemporaryFile() { std::filesystem::remove(path_); }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

// A source whose token i is i.
class Counting : public TokenSource {
 public:
  explicit Counting(int64_t count) : count_(count) {}
  int64_t token_count() const override { return count_; }
  std::string describe() const override { return "numbers"; }

 protected:
  void fetch(int64_t first, std::span<int32_t> to) const override {
    for (size_t i = 0; i < to.size(); ++i) to[i] = static_cast<int32_t>(first + static_cast<int64_t>(i));
  }

 private:
  int64_t count_;
};

TEST(Permutation, IsABijectionThatDependsOnSeedAndEpoch) {
  for (const int64_t count : {1, 2, 3, 4, 5, 17, 64, 1000, 4097}) {
    std::set<int64_t> seen;
    const Permutation permutation(count, 1, 0);
    for (int64_t i = 0; i < count; ++i) seen.insert(permutation(i));
    EXPECT_EQ(static_cast<int64_t>(seen.size()), count);
    EXPECT_EQ(*seen.begin(), 0);
    EXPECT_EQ(*seen.rbegin(), count - 1);
  }
  const Permutation first(1000, 1, 0), again(1000, 1, 0), next_epoch(1000, 1, 1), other_seed(1000, 2, 0);
  int same_epoch = 0, same_seed = 0, fixed = 0;
  for (int64_t i = 0; i < 1000; ++i) {
    EXPECT_EQ(first(i), again(i));
    same_epoch += first(i) == next_epoch(i);
    same_seed += first(i) == other_seed(i);
    fixed += first(i) == i;
  }
  EXPECT_LT(same_epoch, 10);
  EXPECT_LT(same_seed, 10);
  EXPECT_LT(fixed, 10);
}

TEST(Permutation, LargeCountsStayInRange) {
  const int64_t count = (int64_t{1} << 40) + 12345;
  const Permutation permutation(count, 3, 7);
  for (int64_t i = 0; i < 1000; ++i) {
    const int64_t at = permutation(i * 1'000'000'007 % count);
    EXPECT_TRUE(0 <= at && at < count);
  }
}

TEST(Loader, ReadsEverySequenceOncePerEpochOverAllRanks) {
  const int64_t sequence = 7, micro_batch = 3, accumulate = 2, sequences = 60;
  const Counting source(sequences * sequence + 5);  // the last 5 tokens do not fill a sequence
  for (const int ranks : {1, 2, 5}) {
    const int64_t global_batch = ranks * micro_batch * accumulate;
    ASSERT_EQ(sequences * 2 % global_batch, 0);
    std::vector<int> taken(sequences, 0);
    for (int64_t consumed = 0; consumed < 2 * sequences; consumed += global_batch) {
      for (int rank = 0; rank < ranks; ++rank) {
        Loader loader(source, {sequence, micro_batch, 1 << 20, true, 9, rank, ranks});
        EXPECT_EQ(loader.sequence_count(), sequences);
        for (int64_t micro = 0; micro < accumulate; ++micro) {
          loader.load(consumed, micro);
          for (int64_t i = 0; i < micro_batch * sequence; ++i) {
            const auto at = static_cast<size_t>(i);
            EXPECT_EQ(loader.targets()[at], loader.tokens()[at] + 1);
            if (i % sequence == 0) {
              EXPECT_EQ(loader.tokens()[at] % sequence, 0);
              ++taken[static_cast<size_t>(loader.tokens()[at] / sequence)];
            }
          }
        }
      }
    }
    EXPECT_TRUE(std::ranges::all_of(taken, [](int count) { return count == 2; })) << ranks << " ranks";
  }
}

// The global batch has the same sequences in the same order for any number of ranks.
TEST(Loader, TheNumberOfRanksDoesNotChangeTheOrder) {
  const Counting source(1000);
  const auto batch = [&](int ranks, int64_t accumulate) {
    std::vector<int32_t> first_tokens;
    for (int64_t micro = 0; micro < accumulate; ++micro) {
      for (int rank = 0; rank < ranks; ++rank) {
        Loader loader(source, {10, 2, 1 << 20, true, 1, rank, ranks});
        loader.load(16, micro);
        for (size_t b = 0; b < 2; ++b) first_tokens.push_back(loader.tokens()[b * 10]);
      }
    }
    return first_tokens;
  };
  EXPECT_EQ(batch(1, 4), batch(4, 1));
  EXPECT_EQ(batch(2, 2), batch(4, 1));
}

TEST(Loader, WithoutShufflingTheOrderIsThatOfTheFile) {
  const Counting source(101);
  Loader loader(source, {10, 1, 1 << 20, false, 1, 0, 1});
  for (int64_t position = 0; position < 25; ++position) {
    loader.load(position, 0);
    EXPECT_EQ(loader.tokens().front(), position % 10 * 10);
  }
}

TEST(Loader, ChecksEveryToken) {
  const Counting source(101);
  Loader loader(source, {10, 1, 50, false, 1, 0, 1});
  EXPECT_NO_THROW(loader.load(3, 0));
  EXPECT_THROW(loader.load(4, 0), UsageError);  // the last target is 50, and the vocabulary has 50 entries
  EXPECT_THROW(Loader(source, {101, 1, 50, false, 1, 0, 1}), UsageError);
  EXPECT_NO_THROW(Loader(source, {100, 1, 50, false, 1, 0, 1}));
}

TEST(TokenSource, ReadsBytesAnd16BitTokens) {
  const TemporaryFile text(".txt", "ab\xff"), bin(".bin", std::string("\x01\x00\xff\xff\x00\x01", 6)),
      odd("_odd.bin", "abc");
  std::vector<int32_t> tokens(3);
  open_token_source(text.path())->read(0, tokens, 256);
  EXPECT_EQ(tokens, (std::vector<int32_t>{'a', 'b', 255}));
  const auto source = open_token_source(bin.path());
  EXPECT_EQ(source->token_count(), 3);
  source->read(0, tokens, 65536);
  EXPECT_EQ(tokens, (std::vector<int32_t>{1, 65535, 256}));
  EXPECT_THROW(source->read(0, tokens, 50257), UsageError);
  EXPECT_THROW(open_token_source(odd.path()), UsageError);
  EXPECT_THROW(open_token_source("/no/such/file.txt"), UsageError);
  EXPECT_THROW(open_token_source(std::filesystem::temp_directory_path()), UsageError);
  const TemporaryFile empty(".empty", "");
  EXPECT_THROW(open_token_source(empty.path()), UsageError);
}

TEST(SyntheticLanguage, DoesNotDependOnTheRangesThatAreRead) {
  const auto source = make_synthetic_language(256);
  std::vector<int32_t> all(500), part(13);
  source->read(1000, all, 256);
  for (size_t at = 0; at + part.size() <= all.size(); at += 7) {
    source->read(1000 + static_cast<int64_t>(at), part, 256);
    EXPECT_TRUE(std::equal(part.begin(), part.end(), all.begin() + static_cast<std::ptrdiff_t>(at)));
  }
  EXPECT_TRUE(std::ranges::all_of(all, [](int32_t t) { return t == '\n' || (' ' <= t && t < 127); }));
  const auto small = make_synthetic_language(20);
  EXPECT_NO_THROW(small->read(0, all, 20));
}

}  // namespace
}  // namespace aliquot::test
