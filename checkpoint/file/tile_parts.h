#pragma once
// Checksums of a file's tiles from those of the parts that ranks wrote or read.

#include <cstdint>
#include <string>
#include <vector>

namespace aliquot {

/// The CRC-32C of bytes [begin, begin + count) of the file, which lie in one tile.
struct TilePart {
  int64_t begin = 0, count = 0;
  uint32_t crc = 0;
};

/// Every rank's parts, as bytes, to one checksum a tile. Throws FaultError when the parts do not tile the file exactly once.
std::vector<uint32_t> combine_tile_crcs(const std::vector<std::string>& gathered, int64_t file_bytes);

/// [begin, end) cut at the tiles' edges.
std::vector<TilePart> split_at_tiles(int64_t begin, int64_t end);

}  // namespace aliquot
