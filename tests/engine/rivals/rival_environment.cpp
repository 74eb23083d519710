// Runs any test of engines with rival plans: ALIQUOT_RIVAL=mirrored engine_test. The names are in rivals.cpp.
#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <string_view>

#include "engine/plan/plan_rewriter.h"
#include "tests/engine/rivals/rivals.h"

namespace aliquot::testing {
namespace {

class RivalEnvironment : public ::testing::Environment {
 public:
  explicit RivalEnvironment(std::string_view name) : name_(name) {}

  void SetUp() override {
    const auto rival = std::ranges::find(all_rivals(), name_, &Rival::name);
    ASSERT_NE(rival, all_rivals().end()) << "no rival is named " << name_;
    set_plan_rewriter([this, rewrite = rival->rewrite](std::vector<Plan>& stages) {
      rewrite(stages);
      plans_ += static_cast<int64_t>(stages.size());
    });
  }
  void TearDown() override {
    set_plan_rewriter(nullptr);
    fmt::print("rewrote {} plans: {}\n", plans_.load(), name_);
    EXPECT_GT(plans_, 0);
  }

 private:
  std::string_view name_;
  std::atomic<int64_t> plans_ = 0;
};

[[maybe_unused]] const bool is_added = [] {
  if (const char* name = std::getenv("ALIQUOT_RIVAL")) {
    ::testing::AddGlobalTestEnvironment(new RivalEnvironment(name));  // GoogleTest deletes it
  }
  return true;
}();

}  // namespace
}  // namespace aliquot::testing
