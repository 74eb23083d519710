#include "kernels/gemm/product_choices.h"

#include <filesystem>
#include <fstream>
#include <gtest/gtest.h>
#include <iterator>

#include "kernels/system/error.h"

namespace aliquot {
namespace {

class ProductChoicesTest : public testing::Test {
 protected:
  void TearDown() override { std::filesystem::remove(file_); }
  void write(const std::string& text) const { std::ofstream(file_) << text; }
  std::string text() const {
    std::ifstream in(file_);
    return {std::istreambuf_iterator<char>(in), {}};
  }

  const std::string file_ =
      testing::TempDir() + "product_choices_" + testing::UnitTest::GetInstance()->current_test_info()->name() + ".txt";
  const std::string device_ = "GPU\tcuBLASLt 1";
};

TEST_F(ProductChoicesTest, AddsLinesToAFileThatMayNotExist) {
  {
    ProductChoices choices(file_, device_, true);
    EXPECT_EQ(choices.find("a"), std::nullopt);
    choices.add("a", 3);
    choices.add("a", 4);  // the first choice counts
    choices.add("b c", 0);
    EXPECT_EQ(choices.find("a"), 3);
  }
  EXPECT_EQ(text(), "GPU\tcuBLASLt 1\t3\ta\nGPU\tcuBLASLt 1\t0\tb c\n");
  const ProductChoices again(file_, device_, false);
  EXPECT_EQ(again.find("a"), 3);
  EXPECT_EQ(again.find("b c"), 0);
  EXPECT_EQ(ProductChoices(file_, "GPU\tcuBLASLt 2", false).find("a"), std::nullopt);
}

/// A file may have two lines for a product. The first line counts.
TEST_F(ProductChoicesTest, FirstLineOfAProductCounts) {
  write("GPU\tcuBLASLt 1\t7\ta\nGPU\tcuBLASLt 1\t2\ta\n");
  EXPECT_EQ(ProductChoices(file_, device_, false).find("a"), 7);
}

TEST_F(ProductChoicesTest, NamesAnInvalidLine) {
  for (const char* line : {"text", "GPU\tcuBLASLt 1\ta", "GPU\tcuBLASLt 1\tx\ta", "GPU\tcuBLASLt 1\t-1\ta",
                           "GPU\tcuBLASLt 1\t1x\ta", ""}) {
    SCOPED_TRACE(line);
    write(std::string("GPU\tcuBLASLt 1\t7\ta\n") + line + "\n");
    try {
      ProductChoices(file_, device_, true);
      ADD_FAILURE() << "the line was accepted";
    } catch (const UsageError& error) {
      EXPECT_NE(std::string(error.what()).find("line 2 of " + file_), std::string::npos) << error.what();
    }
  }
}

TEST_F(ProductChoicesTest, NamesAFileThatCannotBeUsed) {
  const std::string missing = testing::TempDir() + "no_such_folder/choices";
  EXPECT_THROW(ProductChoices(missing, device_, true), UsageError);
  EXPECT_THROW(ProductChoices(missing, device_, false), UsageError);
  EXPECT_THROW(ProductChoices(testing::TempDir(), device_, true), UsageError);
}

/// Two ranks measure the same product. Both use the choice that was added first.
TEST_F(ProductChoicesTest, RanksAgreeOnACandidate) {
  ProductChoices first(file_, device_, true), second(file_, device_, true);
  EXPECT_EQ(first.add("product", 3), 3);
  EXPECT_EQ(second.add("product", 5), 3);
  EXPECT_EQ(second.find("product"), 3);
  EXPECT_EQ(text(), "GPU\tcuBLASLt 1\t3\tproduct\n");
}

}  // namespace
}  // namespace aliquot
