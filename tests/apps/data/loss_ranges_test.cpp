// Tokens whose loss does not count.
#include <gtest/gtest.h>

#include "apps/data/loader.h"
#include "apps/data/token_file_writer.h"
#include "apps/models/layers/loss.h"
#include "tests/apps/tokenize/support.h"

namespace aliquot::test {
namespace {

/// A file whose token i is i, with documents of changing lengths. In each document, the loss of the last tokens counts.
class Documents {
 public:
  explicit Documents(const std::string& path) : path_(path) {
    TokenFileWriter writer(path, 2);
    for (int document = 0; document < 40; ++document) {
      const int length = 1 + document * 7 % 23, prompt = document * 5 % length;
      std::vector<int32_t> tokens;
      for (int i = 0; i < length; ++i) {
        tokens.push_back(static_cast<int32_t>(counts_.size()));
        counts_.push_back(i >= prompt);
      }
      writer.append_with_loss_from(tokens, prompt);
    }
    writer.finish({.vocabulary_size = 1000});
  }

  const std::string& path() const { return path_; }
  int64_t token_count() const { return std::ssize(counts_); }
  /// The plain reference: whether the loss of token `token` counts.
  bool counts(int64_t token) const { return counts_[static_cast<size_t>(token)]; }

 private:
  std::string path_;
  std::vector<bool> counts_;
};

TEST(LossRanges, EveryRangeOfTokensMatchesThePlainReference) {
  const TestFolder folder;
  const Documents documents(folder.path("a.h5"));
  const auto source = open_token_source(documents.path());
  ASSERT_TRUE(source->ignores_targets());
  for (int64_t first = 0; first < documents.token_count(); ++first) {
    for (int64_t count = 0; first + count <= documents.token_count(); count += 1 + count / 9) {
      std::vector<int32_t> targets(static_cast<size_t>(count));
      source->read(first, targets, 1000);
      source->ignore_targets(first, targets);
      int64_t expected = 0;
      for (int64_t i = 0; i < count; ++i) {
        expected += documents.counts(first + i);
        ASSERT_EQ(targets[static_cast<size_t>(i)], documents.counts(first + i) ? first + i : kIgnoredTarget);
      }
      ASSERT_EQ(source->count_targets(first, count), expected) << first << " " << count;
    }
  }
}

/// Sequences are cut anywhere, also within a prompt or an answer.
TEST(LossRanges, SequencesOfAnyLengthIgnoreTheSameTargets) {
  const TestFolder folder;
  const Documents documents(folder.path("a.h5"));
  const auto source = open_token_source(documents.path());
  for (const int64_t sequence : {1, 2, 7, 16, 61}) {
    for (const int ranks : {1, 2, 3}) {
      const int64_t micro_batch = 2, accumulate = 2, global_batch = ranks * micro_batch * accumulate;
      int64_t counted = 0;
      for (int rank = 0; rank < ranks; ++rank) {
        Loader loader(*source, {sequence, micro_batch, 1000, true, 3, rank, ranks});
        for (int64_t micro = 0; micro < accumulate; ++micro) {
          loader.load(5, micro);
          for (size_t i = 0; i < loader.targets().size(); ++i) {
            const int32_t target = loader.tokens()[i] + 1;
            ASSERT_EQ(loader.targets()[i], documents.counts(target) ? target : kIgnoredTarget);
            counted += documents.counts(target);
          }
        }
        EXPECT_EQ(loader.tokens().size(), static_cast<size_t>(micro_batch * sequence));
      }
      Loader any(*source, {sequence, micro_batch, 1000, true, 3, 0, ranks});
      EXPECT_EQ(any.count_targets(5, global_batch), counted) << sequence << " " << ranks;
    }
  }
}

TEST(LossRanges, FilesWithAndWithoutThemCanBeMixed) {
  const TestFolder folder;
  const Documents documents(folder.path("a.h5"));
  const std::string plain = folder.write("b.txt", std::string(100, 'x'));
  const auto source = open_token_sources(plain + ":1," + documents.path() + ":1");
  ASSERT_TRUE(source->ignores_targets());
  std::vector<int32_t> targets(static_cast<size_t>(source->token_count()));
  source->read(0, targets, 1000);
  source->ignore_targets(0, targets);
  int64_t counted = 0;
  for (int64_t i = 0; i < source->token_count(); ++i) {
    const bool counts = i < 100 || documents.counts(i - 100);
    ASSERT_EQ(targets[static_cast<size_t>(i)] != kIgnoredTarget, counts) << i;
    counted += counts;
  }
  EXPECT_EQ(source->count_targets(0, source->token_count()), counted);
  EXPECT_EQ(source->count_targets(90, 10), 10);
  EXPECT_FALSE(open_token_sources(plain + ":1," + plain + ":2")->ignores_targets());
}

}  // namespace
}  // namespace aliquot::test
