#include "engine/run/tensor_stream.h"

#include <algorithm>
#include <cstring>
#include <fmt/format.h>

#include "kernels/system/error.h"
#include "sharding/comm/collective_purpose.h"
#include "sharding/state_pieces.h"

namespace aliquot {
namespace {

/// Elements are read directly into the message, so each run of elements begins at a multiple of this alignment.
constexpr std::size_t kAlignment = alignof(int64_t);
static_assert(sizeof(Overlap) % kAlignment == 0);

constexpr std::size_t aligned(std::size_t size) { return (size + kAlignment - 1) / kAlignment * kAlignment; }

void append(std::string& to, const Overlap& part) { to.append(reinterpret_cast<const char*>(&part), sizeof part); }

}  // namespace

TensorStream::TensorStream(Communicator& ranks, Ledger& ledger, int64_t staging_bytes)
    : ranks_(ranks),
      booking_(ledger, staging_bytes, Category::kStaging, "tensors streamed over ranks"),
      chunk_bytes_(staging_bytes / kStreamCopies) {}

/// Appends this rank's elements in [begin, end) to `bytes`. Before each run of elements, appends an Overlap with the
/// position of the run.
std::string TensorStream::packed(std::string bytes, const StateTensor& tensor, int64_t begin, int64_t end) {
  const int64_t each = element_bytes(tensor.dtype);
  for (const StatePiece& piece : tensor.pieces) {
    if (piece.copy) continue;
    for_each_overlap(piece, begin, end, [&](const Overlap& part, int64_t index) {
      append(bytes, part);
      const std::size_t at = bytes.size(), size = static_cast<std::size_t>(part.count * each);
      bytes.resize(at + aligned(size));
      read_piece(tensor, piece, index * each, {reinterpret_cast<std::byte*>(bytes.data() + at), size});
    });
  }
  return bytes;
}

void TensorStream::run(std::string_view what, const StateTensor& tensor, const ElementsCallback& take) {
  const int64_t each = element_bytes(tensor.dtype), count = tensor.element_count();
  const int64_t most = std::max<int64_t>(1, chunk_bytes_ / each);
  const ScopedCollectivePurpose purpose("gather values");
  std::string heading = fmt::format("{}\n", what);
  heading.resize(aligned(heading.size()));
  for (int64_t begin = 0; begin == 0 || begin < count; begin += most) {
    const int64_t end = std::min(count, begin + most);
    const auto all = ranks_.gather_objects(packed(heading, tensor, begin, end));
    for (std::size_t r = 0; r < all.size(); ++r) {
      const std::string_view theirs = std::string_view(all[r]).substr(0, all[r].find('\n'));
      const std::string_view first = std::string_view(all[0]).substr(0, all[0].find('\n'));
      if (theirs != first)
        throw UsageError(fmt::format("ranks make different calls: rank {} is {}, but rank 0 is {}", r, theirs, first));
    }
    chunk_.resize(static_cast<std::size_t>((end - begin) * each));
    for (const std::string& rank : all) {
      for (std::size_t at = heading.size(); at < rank.size();) {
        Overlap part;
        std::memcpy(&part, rank.data() + at, sizeof part);
        const auto size = static_cast<std::size_t>(part.count * each);
        std::memcpy(chunk_.data() + (part.first - begin) * each, rank.data() + at + sizeof part, size);
        at += sizeof part + aligned(size);
      }
    }
    take(begin, chunk_);
  }
}

}  // namespace aliquot
