#include "engine/gather_in_parts.h"

#include <algorithm>
#include <fmt/format.h>

#include "sharding/exchange_purpose.h"

namespace aliquot {
namespace {

struct Heading {
  std::size_t size_bytes;
  std::string what;
};

Heading parsed(const std::string& text) {
  const std::size_t space = text.find(' ');
  return {std::stoull(text.substr(0, space)), text.substr(space + 1)};
}

}  // namespace

std::vector<std::string> gather_in_parts(Communicator& ranks, std::string_view what, std::string_view own,
                                         int64_t part_bytes) {
  const ExchangePurpose purpose("gather values");
  const auto headings = ranks.gather_objects(fmt::format("{} {}", own.size(), what));
  const std::string first = parsed(headings.front()).what;
  std::size_t longest = 0;
  for (std::size_t r = 0; r < headings.size(); ++r) {
    const auto [size_bytes, theirs] = parsed(headings[r]);
    if (theirs != first) throw UsageError(fmt::format("rank {} is {}, rank 0 is {}", r, theirs, first));
    longest = std::max(longest, size_bytes);
  }
  const auto each = static_cast<std::size_t>(std::max<int64_t>(1, part_bytes / ranks.rank_count()));
  std::vector<std::string> all(headings.size());
  for (std::size_t at = 0; at < longest; at += each) {
    const auto parts = ranks.gather_objects(own.substr(std::min(at, own.size()), each));
    for (std::size_t r = 0; r < parts.size(); ++r) all[r] += parts[r];
  }
  return all;
}

}  // namespace aliquot
