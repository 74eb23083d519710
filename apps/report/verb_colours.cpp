#include <array>
#include <cmath>
#include <cstdlib>
#include <fmt/format.h>
#include <utility>

#include "apps/report/charts.h"

namespace aliquot {
namespace {

/// The red, green and blue of "#rrggbb", each from 0 to 255.
std::array<double, 3> components(std::string_view colour) {
  const long all = std::strtol(std::string(colour.substr(1)).c_str(), nullptr, 16);
  return {static_cast<double>(all >> 16), static_cast<double>(all >> 8 & 255), static_cast<double>(all & 255)};
}

}  // namespace

std::string_view verb_colour(std::string_view title) {
  constexpr std::array<std::pair<std::string_view, std::string_view>, 17> kColours = {
      {{"forward", "#0072B2"},
       {"backward", "#D55E00"},
       {"backward-input", "#E69F00"},
       {"backward-weights", "#009E73"},
       {"recompute", "#CC79A7"},
       {"collective", "#44AA99"},
       {"exchange", "#117733"},
       {"gather", "#56B4E9"},
       {"reduce", "#009E73"},
       {"spread", "#88BB44"},
       {"norm", "#333333"},
       {"update", "#AA3377"},
       {"publish", "#E69F00"},
       {"send", "#882255"},
       {"receive", "#DDCC77"},
       {"send-gradient", "#661100"},
       {"receive-gradient", "#999933"}}};
  const std::string_view of = title.substr(0, title.find(' '));
  for (const auto& [verb, colour] : kColours) {
    if (of == verb) return colour;
  }
  return "#999999";
}

std::string lighter(std::string_view colour, double part) {
  const auto mixed = [&](double component) { return std::lround(component + part * (255 - component)); };
  const auto [red, green, blue] = components(colour);
  return fmt::format("#{:02X}{:02X}{:02X}", mixed(red), mixed(green), mixed(blue));
}

std::string_view text_colour_on(std::string_view colour) {
  const auto [red, green, blue] = components(colour);
  return 0.299 * red + 0.587 * green + 0.114 * blue > 150 ? "#000000" : "#FFFFFF";
}

}  // namespace aliquot
