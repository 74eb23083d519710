#pragma once
// A small trained model for tests of `aliquot sample` and `aliquot eval`.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <iterator>
#include <sstream>
#include <string>
#include <vector>

#include "tests/apps/command_line.h"
#include "tests/checkpoint/support.h"

namespace aliquot::test {

class InferenceTest : public testing::Test {
 protected:
  static std::vector<std::string> words_of(const std::string& text) {
    std::istringstream all(text);
    return {std::istream_iterator<std::string>(all), {}};
  }
  static CommandResult run(const std::string& words, const std::vector<std::string>& more = {}) {
    std::vector<std::string> all = words_of(words);
    all.insert(all.end(), more.begin(), more.end());
    return run_aliquot(all);
  }
  /// The standard output of a command that must succeed.
  static std::string output_of(const std::string& words, const std::vector<std::string>& more = {}) {
    const CommandResult result = run(words, more);
    EXPECT_EQ(result.code, 0) << words << "\n" << result.err;
    return result.out;
  }
  /// Expects that the command fails because of wrong usage, with `sentence`.
  static void expect_refusal(const std::string& words, const std::string& sentence) {
    const CommandResult result = run(words);
    EXPECT_EQ(result.code, 1) << words;
    EXPECT_THAT(result.err, testing::HasSubstr(sentence)) << words;
  }
  std::string at(const std::string& name) const { return (folder_.path() / name).string(); }

  /// Trains a model of 64 positions for a few steps and saves it in the directory `name`.
  void train(const std::string& name, const std::string& more = "") const {
    output_of(
        "train --layers 2 --width 32 --heads 4 --vocab 256 --context 64 --sequence 32 --micro-batch 4 --steps 30 --lr "
        "3e-3 --threads 1 --quiet --checkpoint-dir " +
        at(name) + " " + more);
  }

 private:
  TemporaryDirectory folder_;
};

}  // namespace aliquot::test
