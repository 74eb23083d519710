#include <cmath>
#include <gtest/gtest.h>

#include "apps/drawing/axis.h"
#include "apps/drawing/svg.h"
#include "tests/support/well_formed.h"

namespace aliquot::test {
namespace {

TEST(WellFormed, RejectsMalformedXml) {
  EXPECT_EQ(xml_problem("<!DOCTYPE html>\n<a b=\"&lt;1\"><c/>x &amp; y</a>\n"), "");
  for (const char* bad : {"", "x", "<a>", "<a></b>", "<a b=c/>", "<a b=\"1\" b=\"2\"/>", "<a>&</a>", "<a>&nbsp;</a>",
                          "<a/><b/>", "<a b=\"<\"/>", "<a>\x01</a>"}) {
    EXPECT_NE(xml_problem(bad), "") << bad;
  }
}

TEST(Axis, MapsValuesToPositions) {
  const Axis even(Axis::Scale::kEven, {0, 10}, {100, 0});
  EXPECT_DOUBLE_EQ(even.at(0), 100);
  EXPECT_DOUBLE_EQ(even.at(2.5), 75);
  const Axis logarithmic(Axis::Scale::kLogarithmic, {1, 1e4}, {0, 400});
  EXPECT_DOUBLE_EQ(logarithmic.at(100), 200);
  const Axis single(Axis::Scale::kEven, {3, 3}, {0, 100});  // an empty range maps to the middle
  EXPECT_DOUBLE_EQ(single.at(3), 50);
  EXPECT_DOUBLE_EQ(Axis(Axis::Scale::kEven, {0, 0}, {0, 100}).at(0), 50);
}

TEST(Axis, TicksAreRoundFewAndInRange) {
  for (const double most : {0.003, 1., 7., 99., 12345.}) {
    const Axis axis(Axis::Scale::kEven, {0, most}, {0, 1});
    const std::vector<double> ticks = axis.round_ticks(6);
    EXPECT_GE(ticks.size(), 3u) << most;
    EXPECT_LE(ticks.size(), 8u) << most;
    EXPECT_EQ(tick_text(ticks.front()), "0");
    EXPECT_FALSE(std::signbit(ticks.front()));
    EXPECT_LE(ticks.back(), most * (1 + 1e-9));
  }
  EXPECT_EQ(Axis(Axis::Scale::kLogarithmic, {3, 3000}, {0, 1}).power_ticks(10, 6),
            (std::vector<double>{10, 100, 1000}));
  EXPECT_LE(Axis(Axis::Scale::kLogarithmic, {1, 1e12}, {0, 1}).power_ticks(2, 8).size(), 8u);
}

TEST(Axis, TextsOfNumbersAreShort) {
  EXPECT_EQ(count_text(842496), "842k");
  EXPECT_EQ(count_text(124439808), "124M");
  EXPECT_EQ(count_text(999.7), "1k");
  EXPECT_EQ(count_text(1.5576e9), "1.56B");
  EXPECT_EQ(tick_bytes_text(1 << 26), "64 MiB");
  EXPECT_EQ(tick_bytes_text(1.5 * (1 << 30)), "1.5 GiB");
  EXPECT_EQ(tick_text(0.25), "0.25");
  EXPECT_EQ(tick_text(1500), "1500");
  EXPECT_EQ(tick_text(2e6), "2M");
}

TEST(Svg, EscapesTexts) {
  Svg svg(100, 50, "a < b & \"c\"");
  svg.text({1, 2}, "<script>&</script>", R"(fill="black")");
  svg.path({{0, 0}, {1, 2}}, R"(stroke="black")");
  for (const Mark mark : {Mark::kCircle, Mark::kSquare, Mark::kTriangle, Mark::kDiamond, Mark::kCross})
    svg.mark(mark, {5, 5}, 2, R"(fill="red")", "tip & tip");
  svg.rectangle({0, 0}, {1, 1}, R"(fill="none")");
  const std::string text = svg.finish();
  EXPECT_EQ(xml_problem(text), "");
  EXPECT_EQ(text.find("<script>"), std::string::npos);
}

}  // namespace
}  // namespace aliquot::test
