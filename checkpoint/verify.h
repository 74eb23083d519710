#pragma once
// Reading a checkpoint whole, for its own sake.

#include <cstdint>
#include <filesystem>
#include <functional>

#include "checkpoint/file/manifest.h"
#include "checkpoint/reader.h"

namespace aliquot {

/// Told bytes done and bytes in all.
using VerifyProgress = std::function<void(int64_t, int64_t)>;

/// Re-reads every byte of the checkpoint against its manifest, and has HDF5 open the verified file to prove that others
/// find the same tensors in it: not where another version of HDF5 laid the file out, for then its structure cannot be
/// compared first, and HDF5 is no parser for what a stranger may have written. One process, a fixed amount of memory.
/// Throws CheckpointError that says what is wrong; returns the manifest.
Manifest verify_checkpoint(const std::filesystem::path& path, const VerifyProgress& progress = {});

/// The same, and the verified file for whoever reads it.
CheckpointReader open_verified(const std::filesystem::path& path, const VerifyProgress& progress = {});

/// The manifest alone, verified against its own hash and the file's size: no tensor's bytes are read. Throws
/// CheckpointError.
Manifest read_manifest(const std::filesystem::path& path);

}  // namespace aliquot
