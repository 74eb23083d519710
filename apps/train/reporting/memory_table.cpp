#include "apps/train/reporting/memory_table.h"

#include <algorithm>
#include <array>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <vector>

namespace aliquot {
namespace {

constexpr size_t kMinWidth = 8;  // width of "1023 MiB", the widest value

// Columns are separated by one blank.
size_t width_of(std::string_view heading) { return std::max(kMinWidth, heading.size()) + 1; }

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
  for (const Category category : columns) {
    text += fmt::format("{:>{}}", format_bytes(bytes[static_cast<size_t>(category)]), width_of(name(category)));
  }
  return text + fmt::format("{:>{}}", format_bytes(peak), width_of("peak"));
}

std::string header(const std::vector<Category>& columns) {
  std::string text;
  for (const Category category : columns) text += fmt::format("{:>{}}", name(category), width_of(name(category)));
  return text + fmt::format("{:>{}}{:>{}}", "peak", width_of("peak"), "outside", width_of("outside"));
}

/// A line for each GPU of the first `shown` ranks: how much of its memory is in use, and by what.
std::string gpu_lines(std::span<const RankMemory> ranks, size_t shown) {
  std::string text;
  for (size_t first = 0; first < shown; ++first) {
    if (ranks[first].gpu_rank != static_cast<int>(first)) continue;  // no GPU, or one that has a line already
    int64_t held = 0, nccl = 0;
    std::vector<size_t> sharers;
    for (size_t r = first; r < ranks.size(); ++r) {
      if (ranks[r].gpu_rank != static_cast<int>(first)) continue;
      sharers.push_back(r);
      held += ranks[r].held_bytes;
      nccl += ranks[r].gpu.nccl_bytes;
    }
    const GpuMemoryUse& gpu = ranks[first].gpu;
    text += fmt::format(
        "GPU of rank{} {}: {} before the run (CUDA contexts, kernels, other programs), {} of NCCL's "
        "communicators, {} of the ranks, {} other; {} of {} in use\n",
        sharers.size() == 1 ? "" : "s", fmt::join(sharers, ", "), format_bytes(gpu.start_bytes), format_bytes(nccl),
        format_bytes(held), format_bytes(std::max(int64_t{0}, gpu.used_bytes - gpu.start_bytes - nccl - held)),
        format_bytes(gpu.used_bytes), format_bytes(gpu.total_bytes));
  }
  return text;
}

}  // namespace

std::string memory_table(std::span<const RankMemory> ranks, int tensor, int most_ranks) {
  const std::vector<Category> columns = categories_in_use(ranks);
  const auto rank_text = [tensor](size_t rank) {
    return tensor == 1 ? fmt::format("rank {}", rank) : fmt::format("rank {} (tensor rank {})", rank, rank % tensor);
  };
  const size_t width = tensor == 1 ? 7 : rank_text(0).size() + 2;
  std::string text = fmt::format("{:<{}}{}\n", "memory", width + 8, header(columns));
  const size_t shown = std::min(ranks.size(), static_cast<size_t>(most_ranks));
  bool agree = true;
  for (size_t i = 0; i < ranks.size(); ++i) {
    const RankMemory& rank = ranks[i];
    agree = agree && rank.planned == rank.measured && rank.planned_peak_bytes == rank.measured_peak_bytes;
    if (i >= shown) continue;
    text += fmt::format("{:<{}}{:<8}{}\n", rank_text(i), width, "planned",
                        figures(rank.planned, rank.planned_peak_bytes, columns));
    text += fmt::format("{:<{}}{:<8}{}{:>{}}\n", "", width, "measured",
                        figures(rank.measured, rank.measured_peak_bytes, columns), format_bytes(rank.outside_bytes),
                        width_of("outside"));
  }
  if (shown < ranks.size()) text += fmt::format("and {} more ranks\n", ranks.size() - shown);
  text += agree ? "planned and measured agree to the byte\n" : "planned and measured differ\n";
  text += gpu_lines(ranks, shown);
  const auto most = std::ranges::max_element(ranks, {}, &RankMemory::system_peak_bytes);
  if (most == ranks.end() || most->system_peak_bytes == 0) return text;
  return text + fmt::format("the operating system measured at most {} of host memory per rank, while {}\n",
                            format_bytes(most->system_peak_bytes), name(most->system_peak_phase));
}

}  // namespace aliquot
