#pragma once
// Combines the checksums of the parts that ranks wrote or read into one checksum for each tile of the file.

#include <cstdint>
#include <string>
#include <vector>

namespace aliquot {

/// The CRC-32C of bytes [begin, begin + count) of the file. A part does not cross a tile boundary. If several ranks
/// have bytes of a part, each of them has a TilePart with the same bounds: see add_to_part().
struct TilePart {
  int64_t begin = 0, count = 0;
  uint32_t crc = 0;
  int64_t missing_bytes = 0;  // number of bytes of the part that are not in `crc`, because other ranks have them
};

/// Adds bytes [begin, begin + count) of the file, with the CRC-32C `crc`, to a part in which they are missing.
void add_to_part(TilePart& part, int64_t begin, int64_t count, uint32_t crc);

/// `gathered` holds the parts of each rank, serialized with to_bytes(). Returns one checksum for each tile. Throws
/// FaultError if the parts do not cover each byte of the file exactly once. For the bytes inside a part that several
/// ranks have, checks only that their number is correct.
std::vector<uint32_t> combine_tile_crcs(const std::vector<std::string>& gathered, int64_t file_bytes);

/// Splits [begin, end) at the tile boundaries. The checksums of the parts are 0.
std::vector<TilePart> split_at_tiles(int64_t begin, int64_t end);

}  // namespace aliquot
