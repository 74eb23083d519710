// The subcommands list, show, verify, diff and prune of `aliquot checkpoint`.
#include <fmt/format.h>
#include <unistd.h>

#include "apps/checkpoints/commands.h"
#include "apps/checkpoints/saved_adapters.h"
#include "apps/checkpoints/tensor_list.h"
#include "apps/console.h"
#include "apps/train/digest.h"
#include "checkpoint/checkpoint_directory.h"
#include "checkpoint/difference.h"
#include "checkpoint/verify.h"
#include "kernels/system/checkpoint_error.h"
#include "kernels/system/format_bytes.h"

namespace aliquot {
namespace {

constexpr std::string_view kParameters = "parameters/";

[[noreturn]] void throw_not_found(const std::string& path) {
  throw CheckpointError(
      fmt::format("found no checkpoint at {}: expected the directory of a checkpoint (step-N), or one that contains "
                  "such directories",
                  path));
}

/// Whether `path` exists. Returns false if the path cannot be examined, for example because of a loop of links.
bool path_exists(const std::filesystem::path& path) {
  std::error_code error;
  return std::filesystem::exists(path, error);
}

std::filesystem::path find_checkpoint_directory(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::is_directory(path, error)) {
    throw CheckpointError(fmt::format("{} is not a directory: expected a directory of checkpoints", path));
  }
  return path;
}

/// Describes the run that wrote the checkpoint, for example "4 ranks, ZeRO stage 3, threads, host". Omits fields that
/// the manifest does not contain.
std::string writer_of(const Manifest& manifest) {
  std::string text;
  const auto add = [&](const char* name, const char* before, const char* after) {
    const auto found = manifest.written_by.find(name);
    if (found == manifest.written_by.end()) return;
    text += (text.empty() ? "" : ", ") + fmt::format("{}{}{}", before, describe(found->second), after);
  };
  const auto ranks = manifest.written_by.find("ranks");
  const bool alone = ranks != manifest.written_by.end() && describe(ranks->second) == "1";
  add("ranks", "", alone ? " rank" : " ranks");
  add("zero_stage", "ZeRO stage ", "");
  add("world", "", "");
  add("device", "", "");
  return text;
}

std::string digest_of(const CheckpointReader& reader) {
  WeightDigest digest;
  std::vector<std::byte> chunk(static_cast<size_t>(kStagingChunkBytes));
  for (const TensorEntry& tensor : reader.manifest().tensors) {
    if (!tensor.path.starts_with(kParameters)) continue;
    Sha256 sha;
    for (int64_t done = 0; done < tensor.size_bytes; done += kStagingChunkBytes) {
      const auto part =
          std::span(chunk).first(static_cast<size_t>(std::min(kStagingChunkBytes, tensor.size_bytes - done)));
      reader.read(part, tensor.file_offset + done);
      sha.update(part);
    }
    digest.add(tensor.path.substr(kParameters.size()), tensor.dtype, tensor.shape, sha.finish());
  }
  return digest.finish();
}

int64_t elements_of(const Manifest& manifest, std::string_view prefix) {
  int64_t count = 0;
  for (const TensorEntry& tensor : manifest.tensors) {
    if (tensor.path.starts_with(prefix)) count += tensor.size_bytes / element_bytes(tensor.dtype);
  }
  return count;
}

}  // namespace

std::optional<std::filesystem::path> find_checkpoint(const std::string& path) {
  const std::filesystem::path given = path;
  if (path_exists(given / kManifestFile) || path_exists(given / kStateFile)) return given;
  const auto found = list_checkpoints(given);
  return found.empty() ? std::nullopt : std::optional(found.back().path);
}

std::filesystem::path require_checkpoint(const std::string& path) {
  const auto found = find_checkpoint(path);
  if (!found) refuse_adapters_of_peft(path, path);
  if (!found) throw_not_found(path);
  return *found;
}

void print_verification_progress(int64_t done_bytes, int64_t all_bytes) {
  static const bool terminal = ::isatty(STDERR_FILENO) == 1;
  if (!terminal || all_bytes < 64 * kTileBytes) return;
  write_stream(stderr, fmt::format("\rverified {:3} %{}", done_bytes * 100 / all_bytes,
                                   done_bytes == all_bytes ? "\r\033[K" : ""));
}

int list_command(const CheckpointOptions& options) {
  const auto found = list_checkpoints(find_checkpoint_directory(options.paths[0]));
  if (found.empty()) write_stdout("no checkpoints in {}\n", options.paths[0]);
  for (const FoundCheckpoint& each : found) {
    try {
      const Manifest manifest = read_manifest(each.path);
      write_stdout("step {:>8}  {:>10}  {:>5} tensors  {}  ({})\n", each.step, format_bytes(manifest.file_bytes),
                   manifest.tensors.size(), each.path.string(), writer_of(manifest));
    } catch (const CheckpointError& error) {
      write_stdout("step {:>8}  BAD  {}\n", each.step, error.what());
    }
  }
  return 0;
}

int show_command(const CheckpointOptions& options) {
  const std::filesystem::path path = require_checkpoint(options.paths[0]);
  const CheckpointReader reader = open_verified(path, print_verification_progress);
  const Manifest& manifest = reader.manifest();
  write_stdout("checkpoint  {}\nstep        {}\nwritten by  {}\nHDF5        {}\nsize        {} ({} bytes)\n",
               path.string(), manifest.step, writer_of(manifest), printable(manifest.hdf5_version),
               format_bytes(manifest.file_bytes), manifest.file_bytes);
  write_stdout("parameters  {} elements\noptimizer   {} elements\n\nscalars\n", elements_of(manifest, kParameters),
               elements_of(manifest, "optimizer/"));
  for (const auto& [name, value] : manifest.scalars) write_stdout("  {} = {}\n", printable(name), describe(value));
  write_stdout("\ntensors\n");
  for (const std::string& line : options.all_tensors ? tensor_lines(manifest) : grouped_tensor_lines(manifest))
    write_stdout("  {}\n", line);
  write_stdout("\ndigest {}\n", digest_of(reader));
  return 0;
}

int verify_command(const CheckpointOptions& options) {
  std::vector<std::filesystem::path> paths;
  const std::filesystem::path given = options.paths[0];
  if (!path_exists(given / kManifestFile)) {
    for (const FoundCheckpoint& each : list_checkpoints(given)) paths.push_back(each.path);
  }
  if (paths.empty()) paths.push_back(require_checkpoint(options.paths[0]));
  int bad = 0;
  for (const auto& path : paths) {
    try {
      const Manifest manifest = verify_checkpoint(path, print_verification_progress);
      write_stdout("{}: good, {} tensors, {} bytes verified\n", path.string(), manifest.tensors.size(),
                   manifest.file_bytes);
    } catch (const CheckpointError& error) {
      if (path != given && is_gone(path)) {
        write_stdout("{}: removed by another process\n", path.string());
        continue;
      }
      ++bad;
      warn("{}: resume another checkpoint, or use --resume auto, which skips checkpoints that are damaged",
           error.what());
    }
  }
  return static_cast<int>(bad == 0 ? ExitCode::kDone : ExitCode::kCheckpoint);
}

int diff_command(const CheckpointOptions& options) {
  const CheckpointReader a = open_verified(require_checkpoint(options.paths[0]), print_verification_progress);
  const CheckpointReader b = open_verified(require_checkpoint(options.paths[1]), print_verification_progress);
  const CheckpointDifference found = compare_checkpoints(a, b);
  for (const std::string& line : found.scalars) write_stdout("{}\n", line);
  for (const TensorDifference& tensor : found.tensors)
    write_stdout("{}: {}\n", printable(tensor.path), describe(tensor));
  if (found.tensors.empty()) write_stdout("no tensor differs ({} compared)\n", a.manifest().tensors.size());
  return found.tensors.empty() ? 0 : 1;
}

int prune_command(const CheckpointOptions& options) {
  if (!options.keep) throw UsageError("checkpoint prune needs --keep K, the number of newest checkpoints to keep.");
  const PruneReport report = prune_verified(find_checkpoint_directory(options.paths[0]), *options.keep);
  for (const std::string& sentence : report.bad) warn("{}; this checkpoint does not count toward --keep", sentence);
  for (const FoundCheckpoint& each : report.removed) write_stdout("removed {}\n", each.path.string());
  if (report.removed.empty() && report.failures.empty()) write_stdout("nothing to remove\n");
  for (const std::string& sentence : report.failures) warn("{}", sentence);
  return static_cast<int>(report.failures.empty() ? ExitCode::kDone : ExitCode::kFault);
}

}  // namespace aliquot
