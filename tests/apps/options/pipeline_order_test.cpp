// Tests which files --pipeline-order-from accepts, and what it reports for others.
#include <array>
#include <filesystem>
#include <fstream>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <thread>

#include "apps/options/deepspeed.h"
#include "engine/plan/pass_order.h"
#include "kernels/system/error.h"
#include "tests/checkpoint/support.h"

namespace aliquot::test {
namespace {

const std::string kOrder = "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n";

class PipelineOrder : public testing::Test {
 protected:
  /// Returns the order that `aliquot train --pipeline-order-from FILE WORDS...` reads.
  static PassOrder order_of(const std::string& file, std::vector<std::string> words = {}) {
    words.insert(words.end(), {"--pipeline-order-from", file});
    TrainOptions options;
    parse_train_arguments(options, words);
    return options.engine.pass_order;
  }
  static std::string refusal(const std::string& file) {
    try {
      (void)order_of(file);
    } catch (const UsageError& error) {
      EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos) << error.what();
      return error.what();
    }
    return "no error was thrown";
  }
  std::string written(const std::string& text) const {
    const std::string file = directory_.path() / "order";
    std::ofstream(file, std::ios::binary) << text;
    return file;
  }

  TemporaryDirectory directory_;
};

TEST_F(PipelineOrder, BlanksEmptyLinesAndWindowsLineEndsAreIgnored) {
  const PassOrder expected = parse_pass_order(kOrder);
  for (const std::string& text : {kOrder, std::string("0F0,0F1,0B0,0B1\r\n1F0,1B0,1F1,1B1\r\n"),
                                  std::string("\n 0F0, 0F1,,\t0B0,0B1 \r\n\r\n1F0,1B0,1F1,,1B1")})
    EXPECT_TRUE(order_of(written(text)) == expected) << text;
}

TEST_F(PipelineOrder, FilesWithoutActionsAreRefused) {
  for (const std::string text : {"", "\n", "\r\n \r\n\t"})
    EXPECT_NE(refusal(written(text)).find("order: the file has no actions: expected a line of actions such as 0F0"),
              std::string::npos)
        << refusal(written(text));
}

TEST_F(PipelineOrder, FilesThatCannotBeReadAreRefused) {
  const std::string beginning = "--pipeline-order-from: ", folder = directory_.path();
  EXPECT_EQ(refusal(folder), beginning + folder + ": the file cannot be read (Is a directory).");
  EXPECT_EQ(refusal(folder + "/none"),
            beginning + folder + "/none: the file cannot be read (No such file or directory).");
  EXPECT_EQ(refusal(""), beginning + ": the file cannot be read (No such file or directory).");
}

TEST_F(PipelineOrder, HugeAndEndlessFilesAreRefused) {
  const std::string file = written(kOrder);
  std::filesystem::resize_file(file, (uintmax_t{16} << 20) + (1 << 17));
  for (const std::string& huge : {file, std::string("/dev/zero")})
    EXPECT_NE(refusal(huge).find("the file cannot be read (it is larger than 16 MiB)."), std::string::npos);
}

TEST_F(PipelineOrder, OtherContentIsRefusedWithTheLine) {
  for (const std::string word : {"1G0", "F0", "1F", "1F0B1", "-1F0", "1F-1", "99999999999F0", "1.5F0", "\x01\xff"}) {
    const std::string message = refusal(written("0F0,0B0\n1F0," + word + ",1B0\n"));
    EXPECT_NE(message.find("order: line 2: invalid action '"), std::string::npos) << word << "\n" << message;
  }
  EXPECT_LT(refusal(written(std::string(1 << 20, 'x'))).size(), 400u) << "a long line is cut";
}

/// A run records its options. They contain the path of the order file.
TEST_F(PipelineOrder, TheOptionReportsThePathOfTheFile) {
  const std::string file = written(kOrder);
  TrainOptions options;
  parse_train_arguments(options, {"--pipeline-order-from", file});
  EXPECT_EQ(option_text(options, "pipeline-order-from"), file);
}

/// The order file may be a pipe, so the command must read it only once, even with a DeepSpeed file.
TEST_F(PipelineOrder, MayBeAPipe) {
  const std::string pipe = directory_.path() / "pipe", deepspeed = directory_.path() / "ds.json";
  std::ofstream(deepspeed) << R"({"scheduler": {"type": "WarmupCosineLR", "params": {"total_num_steps": 5}}})";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  for (const auto& words : {std::vector<std::string>{}, {"--deepspeed", deepspeed}}) {
    std::jthread writer([&] { std::ofstream(pipe) << kOrder; });
    EXPECT_TRUE(order_of(pipe, words) == parse_pass_order(kOrder));
  }
}

}  // namespace
}  // namespace aliquot::test
