#include "checkpoint/file/tile_parts.h"

#include <algorithm>

#include "checkpoint/file/manifest.h"
#include "checkpoint/hash/crc32c.h"
#include "kernels/system/error.h"
#include "sharding/comm/run_on_all_or_throw.h"

namespace aliquot {

std::vector<uint32_t> combine_tile_crcs(const std::vector<std::string>& gathered, int64_t file_bytes) {
  std::vector<TilePart> parts;
  for (const std::string& bytes : gathered) {
    const auto own = from_bytes<TilePart>(bytes);
    parts.insert(parts.end(), own.begin(), own.end());
  }
  std::sort(parts.begin(), parts.end(), [](const TilePart& a, const TilePart& b) { return a.begin < b.begin; });
  std::vector<uint32_t> tiles(static_cast<size_t>(tile_count(file_bytes)), 0);
  int64_t end = 0;
  for (const TilePart& part : parts) {
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
    parts.push_back({begin, next - begin, 0});
    begin = next;
  }
  return parts;
}

}  // namespace aliquot
