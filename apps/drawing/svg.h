#pragma once
// A drawing as SVG text.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace aliquot {

struct Point {
  double x = 0, y = 0;
};

/// The shapes of measured points, told apart without colours too.
enum class Mark : uint8_t { kCircle, kSquare, kTriangle, kDiamond, kCross };

/// `text` with what XML would read as markup written out.
std::string escaped(std::string_view text);

/// Built from back to front. `style` is attributes as SVG has them: R"(stroke="black")"; texts are escaped here, styles are
/// not. `tip`, where one is given, is shown under the pointer. The same text goes into a file of its own and into a page.
class Svg {
 public:
  /// `title` is what is read out to those who do not see it.
  Svg(double width, double height, std::string_view title);

  void line(Point from, Point to, std::string_view style);
  /// Straight from point to point.
  void path(const std::vector<Point>& points, std::string_view style);
  /// Closed.
  void area(const std::vector<Point>& points, std::string_view style, std::string_view tip = {});
  void rectangle(Point corner, Point extent, std::string_view style, std::string_view tip = {});
  void text(Point at, std::string_view text, std::string_view style);
  void mark(Mark mark, Point at, double radius, std::string_view style, std::string_view tip = {});

  std::string finish() const { return text_ + "</svg>\n"; }

 private:
  void element(std::string_view name, std::string_view attributes, std::string_view style, std::string_view tip);
  std::string text_;
};

}  // namespace aliquot
