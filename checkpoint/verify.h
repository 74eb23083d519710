#pragma once
// Reading a checkpoint whole, for its own sake.

#include <cstdint>
#include <filesystem>
#include <functional>

#include "checkpoint/manifest.h"

namespace aliquot {

/// Re-reads every byte of the checkpoint against its manifest, and has HDF5 open the verified file to prove that others
/// find the same tensors in it. One process, a fixed amount of memory. `progress` is told bytes done and bytes in all.
/// Throws CheckpointError that says what is wrong; returns the manifest.
Manifest verify(const std::filesystem::path& path, const std::function<void(int64_t, int64_t)>& progress = {});

/// The manifest alone, verified against its own hash and the file's size: no tensor's bytes are read. Throws
/// CheckpointError.
Manifest read_manifest(const std::filesystem::path& path);

}  // namespace aliquot
