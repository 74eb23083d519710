#pragma once
// Reads a small file into memory.

#include <cstdint>
#include <filesystem>
#include <string>

namespace aliquot {

/// Returns the contents of a file, also through symbolic links. Throws UsageError, whose message begins with `path`, if
/// it is not a regular file of at most `most_mib` MiB, or cannot be read.
std::string read_whole_file(const std::filesystem::path& path, int64_t most_mib);

}  // namespace aliquot
