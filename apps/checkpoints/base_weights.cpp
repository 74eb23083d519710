#include "apps/checkpoints/base_weights.h"

#include <algorithm>
#include <fmt/format.h>

#include "apps/checkpoints/commands.h"
#include "apps/train/digest.h"
#include "checkpoint/file/convert.h"
#include "checkpoint/reader.h"
#include "checkpoint/verify.h"
#include "checkpoint/weights/weights.h"
#include "kernels/system/checkpoint_error.h"
#include "sharding/comm/run_on_all_or_throw.h"

namespace aliquot {
namespace {

constexpr std::string_view kParameters = "parameters/";

/// Adds the hashes of the tensors `part`, `part` + `parts`, ... to the digest.
void add_hashes(WeightDigest& digest, const BaseWeights& weights, size_t part, size_t parts) {
  std::vector<float> chunk(static_cast<size_t>(BaseWeights::kChunkElements));
  for (size_t t = part; t < weights.tensors().size(); t += parts) {
    const BaseWeights::Tensor& tensor = weights.tensors()[t];
    Sha256 sha;
    for (int64_t first = 0; first < tensor.count; first += BaseWeights::kChunkElements) {
      const int64_t count = std::min(BaseWeights::kChunkElements, tensor.count - first);
      const auto values = std::span(chunk).first(static_cast<size_t>(count));
      tensor.read(first, values);
      sha.update(std::as_bytes(values));
    }
    digest.add(tensor.name, DType::kFloat32, tensor.shape, sha.finish());
  }
}

}  // namespace

/// One of the two is set.
struct BaseWeights::Files {
  std::optional<WeightFiles> weights;
  std::vector<std::unique_ptr<WeightAccess>> accesses;
  std::optional<CheckpointReader> checkpoint;
  std::vector<std::byte> stored;  // elements of a checkpoint before their conversion
};

BaseWeights::BaseWeights(const std::string& path, bool untied) : files_(std::make_unique<Files>()) {
  Files& files = *files_;
  if (is_weights_path(path)) {
    files.weights = WeightFiles::open(FileSystem::system(), path, untied ? EqualHead::kKeep : EqualHead::kLeaveOut);
    for (const WeightTensor& tensor : files.weights->tensors()) {
      const WeightAccess* access =
          files.accesses.emplace_back(std::make_unique<WeightAccess>(tensor, DType::kFloat32)).get();
      tensors_.push_back({tensor.name, tensor.entry->shape, 0, [access](int64_t first, std::span<float> to) {
                            access->read({}, first, std::ssize(to), std::as_writable_bytes(to).data());
                          }});
    }
  } else {
    const std::filesystem::path found = require_checkpoint(path);
    files.checkpoint.emplace(FileSystem::system(), found, read_manifest(found));
    for (const TensorEntry& tensor : files.checkpoint->manifest().tensors) {
      if (!tensor.path.starts_with(kParameters)) continue;
      if (!is_convertible(DType::kFloat32, tensor.dtype))
        throw UsageError(fmt::format("{}: tensor {} has the dtype {}, expected floating-point numbers.", path,
                                     printable(tensor.path), name(tensor.dtype)));
      tensors_.push_back({tensor.path.substr(kParameters.size()), tensor.shape, 0,
                          [&files, &tensor](int64_t first, std::span<float> to) {
                            const int64_t width = element_bytes(tensor.dtype);
                            files.stored.resize(to.size() * static_cast<size_t>(width));
                            files.checkpoint->read(files.stored, tensor.file_offset + first * width);
                            convert(DType::kFloat32, std::as_writable_bytes(to).data(), tensor.dtype,
                                    files.stored.data(), std::ssize(to));
                          }});
    }
  }
  std::ranges::sort(tensors_, {}, &Tensor::name);
  for (Tensor& tensor : tensors_) tensor.count = checked_element_count(tensor.shape).value();
}

BaseWeights::~BaseWeights() = default;

std::string digest_of_base(const BaseWeights& weights) {
  WeightDigest digest;
  add_hashes(digest, weights, 0, 1);
  return digest.finish();
}

std::string digest_of_base(Communicator& communicator, const std::string& path, bool untied) {
  const auto lines_of_rank = gather_or_throw(communicator, [&] {
    WeightDigest own;
    add_hashes(own, BaseWeights(path, untied), static_cast<size_t>(communicator.rank()),
               static_cast<size_t>(communicator.rank_count()));
    return own.lines();
  });
  WeightDigest digest;
  for (const std::string& lines : lines_of_rank) digest.add_lines(lines);
  return digest.finish();
}

}  // namespace aliquot
