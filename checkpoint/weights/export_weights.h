#pragma once
// The parameters of a checkpoint for other programs.

#include <cstdint>
#include <filesystem>
#include <functional>

#include "checkpoint/reader.h"
#include "checkpoint/verify.h"

namespace aliquot {

/// Writes every tensor "parameters/NAME" as NAME, in `dtype`, to directory/file_name, a safetensors file: whole and durable under
/// its name, or not there. `checkpoint` was verified. A fixed amount of memory. Returns the file's size. Throws UsageError when
/// there is such a file already, or no parameter, or one that cannot become `dtype`; FaultError when writing failed.
int64_t export_weights(const CheckpointReader& checkpoint, const std::filesystem::path& directory,
                       const std::string& file_name, DType dtype, const VerifyProgress& progress = {});

/// Writes a small file in the same manner.
void write_file_atomically(const std::filesystem::path& directory, const std::string& file_name, std::string_view text);

}  // namespace aliquot
