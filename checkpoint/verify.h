#pragma once
// Verification of a checkpoint by one process.

#include <cstdint>
#include <filesystem>
#include <functional>

#include "checkpoint/file/manifest.h"
#include "checkpoint/reader.h"

namespace aliquot {

/// Receives the number of verified bytes and the total number of bytes.
using VerifyProgress = std::function<void(int64_t, int64_t)>;

/// Reads every byte of the checkpoint, compares it with the manifest, and returns the manifest. Then lets HDF5 open the
/// verified file and checks that it finds the same tensors. That step is skipped if another version of HDF5 laid out
/// the file. The metadata of such a file cannot be verified, and HDF5 must not parse unverified metadata. Not
/// collective. Uses a fixed amount of memory. Throws CheckpointError, which describes the defect.
Manifest verify_checkpoint(const std::filesystem::path& path, const VerifyProgress& progress = {});

/// Like verify_checkpoint(), but returns the verified checkpoint, open for reading.
CheckpointReader open_verified(const std::filesystem::path& path, const VerifyProgress& progress = {});

/// Returns the manifest, after a check of its own hash and of the size of state.h5. Reads no tensor data. Throws
/// CheckpointError.
Manifest read_manifest(const std::filesystem::path& path);

}  // namespace aliquot
