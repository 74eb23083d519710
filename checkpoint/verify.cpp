#include "checkpoint/verify.h"

#include <fmt/format.h>

#include "checkpoint/file/hdf5_structure.h"
#include "checkpoint/reader.h"
#include "kernels/system/checkpoint_error.h"

namespace aliquot {
namespace {

CheckpointReader open_checkpoint(const std::filesystem::path& path) {
  FileSystem& file_system = FileSystem::system();
  const std::string text = read_manifest_text(file_system, path);
  return {file_system, path, parse_manifest(text, (path / kManifestFile).string())};
}

}  // namespace

CheckpointReader open_verified(const std::filesystem::path& path, const VerifyProgress& progress) {
  CheckpointReader reader = open_checkpoint(path);
  const Manifest& manifest = reader.manifest();
  int64_t done_bytes = 0;
  reader.verify_tiles(0, 1, nullptr, [&](int64_t more_bytes) {
    done_bytes += more_bytes;
    if (progress) progress(done_bytes, manifest.file_bytes);
  });
  reader.verify_structure();
  if (manifest.hdf5_version != linked_hdf5_version()) return reader;
  try {
    check_structure(manifest.tensors, manifest.file_bytes,
                    [&](std::span<std::byte> to, int64_t offset) { reader.read(to, offset); });
  } catch (const FaultError& error) {
    throw CheckpointError(
        fmt::format("checkpoint {} cannot be used: in {}, {}", path.string(), kStateFile, error.what()));
  }
  return reader;
}

Manifest verify_checkpoint(const std::filesystem::path& path, const VerifyProgress& progress) {
  return open_verified(path, progress).manifest();
}

Manifest read_manifest(const std::filesystem::path& path) { return open_checkpoint(path).manifest(); }

}  // namespace aliquot
