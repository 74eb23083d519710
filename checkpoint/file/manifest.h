#pragma once
// manifest.json: what a checkpoint holds and how every byte of it is verified.

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
/// The bytes of state.h5 that share a checksum.
inline constexpr int64_t kTileBytes = int64_t{4} << 20;

struct Manifest {
  int64_t step = 0;
  std::string attempt;       // which save wrote it
  std::string hdf5_version;  // that laid the file out
  int64_t file_bytes = 0;
  std::vector<uint32_t> tile_crcs;   // CRC-32C of each kTileBytes of state.h5, the last one shorter
  std::vector<TensorEntry> tensors;  // in order of path
  std::map<std::string, Scalar> scalars;
  std::map<std::string, Scalar> written_by;  // ranks, zero_stage, ...: of this file alone
};

/// The file's text. Its last value is the SHA-256 of the text with that value's 64 digits taken as zeros.
std::string manifest_text(const Manifest& manifest);

/// Verifies and reads the text. Everything in the result is checked: names, shapes, products, sizes, places that lie in
/// the file and do not overlap, the number of tiles. Throws CheckpointError, one sentence that begins with `where`.
Manifest parse_manifest(std::string_view text, const std::string& where);

/// Tiles of a file of that size.
constexpr int64_t tile_count(int64_t file_bytes) { return (file_bytes + kTileBytes - 1) / kTileBytes; }

}  // namespace aliquot
