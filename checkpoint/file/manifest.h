#pragma once
// manifest.json: the tensors and scalars of a checkpoint and the checksums of state.h5.

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/file/tensor_entry.h"
#include "sharding/state.h"

namespace aliquot {

inline constexpr int64_t kManifestBytesLimit = 100'000'000;
inline constexpr const char* kStateFile = "state.h5";
inline constexpr const char* kManifestFile = "manifest.json";
/// The size of a tile: the range of state.h5 that has its own checksum.
inline constexpr int64_t kTileBytes = int64_t{4} << 20;

struct Manifest {
  int64_t step = 0;
  std::string attempt;       // identifies the save that wrote the checkpoint
  std::string hdf5_version;  // version of the HDF5 library that laid out state.h5
  int64_t file_bytes = 0;
  std::vector<uint32_t> tile_crcs;   // CRC-32C of each tile of state.h5; the last tile may be shorter
  std::vector<TensorEntry> tensors;  // sorted by path
  std::map<std::string, Scalar> scalars;
  /// Properties of the run that saved the checkpoint, such as "ranks" and "zero_stage". state.h5 does not have them.
  std::map<std::string, Scalar> written_by;
};

/// Returns the text of manifest.json. The last value is the SHA-256 of the text, computed with zeros in place of its 64
/// digits.
std::string manifest_text(const Manifest& manifest);

/// Verifies the SHA-256 and parses the text. Checks everything in the result: names, shapes, sizes, the number of
/// tiles, and that all tensors are within the file and do not overlap. Throws CheckpointError with a message that
/// begins with `where`.
Manifest parse_manifest(std::string_view text, const std::string& where);

/// The number of tiles of a file of `file_bytes` bytes.
constexpr int64_t tile_count(int64_t file_bytes) { return (file_bytes + kTileBytes - 1) / kTileBytes; }

}  // namespace aliquot
