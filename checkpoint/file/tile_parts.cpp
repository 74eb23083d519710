#include "checkpoint/file/tile_parts.h"

#include <algorithm>

#include "checkpoint/file/manifest.h"
#include "checkpoint/hash/crc32c.h"
#include "kernels/system/error.h"
#include "sharding/comm/run_on_all_or_throw.h"

namespace aliquot {

namespace {

/// Combines the parts with the same bounds, which are adjacent in the sorted list. The CRC-32C is linear: that of a
/// range is the sum of those of its bytes, each shifted by the number of bytes that follow.
std::vector<TilePart> merge_shared_parts(const std::vector<TilePart>& sorted) {
  std::vector<TilePart> merged;
  for (const TilePart& part : sorted) {
    if (merged.empty() || part.missing_bytes == 0 || merged.back().begin != part.begin ||
        merged.back().count != part.count || merged.back().missing_bytes == 0) {
      merged.push_back(part);
      continue;
    }
    merged.back().crc ^= part.crc;
    merged.back().missing_bytes -= part.count - part.missing_bytes;
  }
  for (const TilePart& part : merged) {
    if (part.missing_bytes != 0)
      throw FaultError("the checksummed bytes of a part of a checkpoint file overlap or leave a gap");
  }
  return merged;
}

}  // namespace

void add_to_part(TilePart& part, int64_t begin, int64_t count, uint32_t crc) {
  part.crc ^= crc32c_combine(crc, 0, part.begin + part.count - begin - count);
  part.missing_bytes -= count;
}

std::vector<uint32_t> combine_tile_crcs(const std::vector<std::string>& gathered, int64_t file_bytes) {
  std::vector<TilePart> parts;
  for (const std::string& bytes : gathered) {
    const auto own = from_bytes<TilePart>(bytes);
    parts.insert(parts.end(), own.begin(), own.end());
  }
  std::sort(parts.begin(), parts.end(), [](const TilePart& a, const TilePart& b) { return a.begin < b.begin; });
  std::vector<uint32_t> tiles(static_cast<size_t>(tile_count(file_bytes)), 0);
  int64_t end = 0;
  for (const TilePart& part : merge_shared_parts(parts)) {
    if (part.begin != end) throw FaultError("the checksummed parts of a checkpoint file overlap or leave a gap");
    auto& tile = tiles[static_cast<size_t>(part.begin / kTileBytes)];
    tile = crc32c_combine(tile, part.crc, part.count);
    end += part.count;
  }
  if (end != file_bytes)
    throw FaultError("the checksummed parts of a checkpoint file do not end at the end of the file");
  return tiles;
}

std::vector<TilePart> split_at_tiles(int64_t begin, int64_t end) {
  std::vector<TilePart> parts;
  while (begin < end) {
    const int64_t next = std::min(end, (begin / kTileBytes + 1) * kTileBytes);
    parts.push_back({begin, next - begin, 0, 0});
    begin = next;
  }
  return parts;
}

}  // namespace aliquot
