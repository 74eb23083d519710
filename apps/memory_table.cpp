#include "apps/memory_table.h"

#include <algorithm>
#include <array>
#include <fmt/format.h>
#include <vector>

namespace aliquot {
namespace {

constexpr size_t kColumn = 10;  // the widest figure, "1023 MiB", and a gap

std::vector<Category> categories_in_use(std::span<const RankMemory> ranks) {
  std::vector<Category> used;
  for (int i = 0; i < kCategoryCount; ++i) {
    const auto at = static_cast<size_t>(i);
    const auto any = [at](const RankMemory& rank) { return rank.planned[at] != 0 || rank.measured[at] != 0; };
    if (static_cast<Category>(i) != Category::kArena && std::ranges::any_of(ranks, any))
      used.push_back(static_cast<Category>(i));
  }
  return used;
}

std::string figures(const BytesByCategory& bytes, int64_t peak, const std::vector<Category>& columns) {
  std::string text;
  for (const Category category : columns)
    text += fmt::format("{:>{}}", bytes_text(bytes[static_cast<size_t>(category)]), kColumn);
  return text + fmt::format("{:>{}}", bytes_text(peak), kColumn);
}

// "parameters" and "activations" fill a column; longer names lose their end.
std::string header(const std::vector<Category>& columns) {
  std::string text;
  for (const Category category : columns)
    text += fmt::format(" {:>{}}", name(category).substr(0, kColumn - 1), kColumn - 1);
  return text + fmt::format("{:>{}}{:>{}}", "peak", kColumn, "outside", kColumn);
}

}  // namespace

std::string bytes_text(int64_t bytes) {
  constexpr std::array kUnits{"B", "KiB", "MiB", "GiB", "TiB"};
  auto value = static_cast<double>(bytes);
  size_t unit = 0;
  while (value >= 1023.5 && unit + 1 < kUnits.size()) {
    value /= 1024;
    ++unit;
  }
  const int decimals = unit == 0 || value >= 99.95 ? 0 : value >= 9.995 ? 1 : 2;
  return fmt::format("{:.{}f} {}", value, decimals, kUnits[unit]);
}

std::string memory_table(std::span<const RankMemory> ranks, int most_ranks) {
  const std::vector<Category> columns = categories_in_use(ranks);
  std::string text = fmt::format("{:<18}{}\n", "memory per rank", header(columns));
  const size_t shown = std::min(ranks.size(), static_cast<size_t>(most_ranks));
  bool agree = true;
  for (size_t i = 0; i < ranks.size(); ++i) {
    const RankMemory& rank = ranks[i];
    agree = agree && rank.planned == rank.measured && rank.planned_peak_bytes == rank.measured_peak_bytes;
    if (i >= shown) continue;
    text += fmt::format("{:<9}{:<9}{}\n", fmt::format("rank {}", i), "planned",
                        figures(rank.planned, rank.planned_peak_bytes, columns));
    text +=
        fmt::format("{:<9}{:<9}{}{:>{}}\n", "", "measured", figures(rank.measured, rank.measured_peak_bytes, columns),
                    bytes_text(rank.outside_bytes), kColumn);
  }
  if (shown < ranks.size()) text += fmt::format("and {} more ranks\n", ranks.size() - shown);
  return text + (agree ? "planned and measured agree to the byte\n" : "planned and measured differ\n");
}

}  // namespace aliquot
