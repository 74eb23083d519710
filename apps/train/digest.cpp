#include "apps/train/digest.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sstream>

namespace aliquot {

void WeightDigest::add(const std::string& tensor, DType dtype, const std::vector<int64_t>& shape,
                       const Sha256::Digest& hash) {
  const std::string extents = shape.empty() ? "1" : fmt::format("{}", fmt::join(shape, "x"));
  lines_[tensor] = fmt::format("{} {} {} {}\n", tensor, name(dtype), extents, hex(hash));
}

std::string WeightDigest::lines() const {
  std::string text;
  for (const auto& [tensor, line] : lines_) text += line;
  return text;
}

void WeightDigest::add_lines(const std::string& lines) {
  std::istringstream text(lines);
  for (std::string line; std::getline(text, line);) lines_[line.substr(0, line.find(' '))] = line + "\n";
}

std::string WeightDigest::finish() const {
  Sha256 sha;
  for (const auto& [tensor, line] : lines_) sha.update(std::string_view(line));
  return hex(sha.finish());
}

}  // namespace aliquot
