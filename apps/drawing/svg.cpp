#include "apps/drawing/svg.h"

#include <fmt/format.h>

namespace aliquot {
namespace {

std::string list(const std::vector<Point>& points) {
  std::string text;
  for (const Point& point : points) text += fmt::format("{}{:.1f},{:.1f}", text.empty() ? "" : " ", point.x, point.y);
  return text;
}

// The corners of a polygon mark with radius `r`. Empty for marks that are not polygons.
std::vector<Point> corners(Mark mark, Point at, double r) {
  switch (mark) {
    case Mark::kSquare: return {{at.x - r, at.y - r}, {at.x + r, at.y - r}, {at.x + r, at.y + r}, {at.x - r, at.y + r}};
    case Mark::kTriangle: return {{at.x, at.y - 1.2 * r}, {at.x + 1.2 * r, at.y + r}, {at.x - 1.2 * r, at.y + r}};
    case Mark::kDiamond:
      return {{at.x, at.y - 1.4 * r}, {at.x + 1.4 * r, at.y}, {at.x, at.y + 1.4 * r}, {at.x - 1.4 * r, at.y}};
    case Mark::kCircle:
    case Mark::kCross: break;
  }
  return {};
}

}  // namespace

std::string escaped(std::string_view text) {
  std::string result;
  for (const char c : text) {
    switch (c) {
      case '&': result += "&amp;"; break;
      case '<': result += "&lt;"; break;
      case '>': result += "&gt;"; break;
      case '"': result += "&quot;"; break;
      default: result += static_cast<unsigned char>(c) < 0x20 && c != '\n' && c != '\t' ? '?' : c;
    }
  }
  return result;
}

Svg::Svg(double width, double height, std::string_view title)
    : text_(
          fmt::format("<svg xmlns=\"http://www.w3.org/2000/svg\" role=\"img\" width=\"{0:.0f}\" height=\"{1:.0f}\" "
                      "viewBox=\"0 0 {0:.0f} {1:.0f}\" font-family=\"Helvetica, Arial, sans-serif\" font-size=\"12\">\n"
                      "<title>{2}</title>\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n",
                      width, height, escaped(title))) {}

void Svg::element(std::string_view name, std::string_view attributes, std::string_view style, std::string_view tip) {
  if (tip.empty()) {
    text_ += fmt::format("<{} {} {}/>\n", name, attributes, style);
  } else {
    text_ += fmt::format("<{0} {1} {2}><title>{3}</title></{0}>\n", name, attributes, style, escaped(tip));
  }
}

void Svg::line(Point from, Point to, std::string_view style) {
  element("line", fmt::format(R"(x1="{:.1f}" y1="{:.1f}" x2="{:.1f}" y2="{:.1f}")", from.x, from.y, to.x, to.y), style,
          {});
}

void Svg::path(const std::vector<Point>& points, std::string_view style) {
  element("polyline", fmt::format(R"(points="{}" fill="none")", list(points)), style, {});
}

void Svg::area(const std::vector<Point>& points, std::string_view style, std::string_view tip) {
  element("polygon", fmt::format(R"(points="{}")", list(points)), style, tip);
}

void Svg::rectangle(Point corner, Point extent, std::string_view style, std::string_view tip) {
  element(
      "rect",
      fmt::format(R"(x="{:.2f}" y="{:.1f}" width="{:.2f}" height="{:.1f}")", corner.x, corner.y, extent.x, extent.y),
      style, tip);
}

void Svg::text(Point at, std::string_view text, std::string_view style) {
  text_ += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" {}>{}</text>\n", at.x, at.y, style, escaped(text));
}

void Svg::mark(Mark mark, Point at, double r, std::string_view style, std::string_view tip) {
  if (mark == Mark::kCircle) {
    element("circle", fmt::format(R"(cx="{:.1f}" cy="{:.1f}" r="{:.1f}")", at.x, at.y, r), style, tip);
  } else if (mark == Mark::kCross) {
    element("path",
            fmt::format(R"(d="M{:.1f},{:.1f} l{:.1f},{:.1f} m0,{:.1f} l{:.1f},{:.1f}")", at.x - r, at.y - r, 2 * r,
                        2 * r, -2 * r, -2 * r, 2 * r),
            style, tip);
  } else {
    area(corners(mark, at, r), style, tip);
  }
}

}  // namespace aliquot
