#pragma once
// Writes a drawing as SVG.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace aliquot {

struct Point {
  double x = 0, y = 0;
};

/// Shapes of data points, so that series can be distinguished without colour.
enum class Mark : uint8_t { kCircle, kSquare, kTriangle, kDiamond, kCross };

/// `text` with the special characters of XML escaped. Control characters except newline and tab become '?'.
std::string escaped(std::string_view text);

/// An SVG drawing. Later elements cover earlier ones. `style` is a list of SVG attributes: R"(stroke="black")". Texts
/// are escaped, styles are not. A browser shows `tip` as a tooltip. The result is valid as a file and as an element of
/// an HTML page.
class Svg {
 public:
  /// `title` is the text for screen readers.
  Svg(double width, double height, std::string_view title);

  void line(Point from, Point to, std::string_view style);
  /// An open polyline.
  void path(const std::vector<Point>& points, std::string_view style);
  /// A filled polygon.
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
