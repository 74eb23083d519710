#include "engine/run/tensor_stream.h"

#include <algorithm>
#include <cstring>
#include <fmt/format.h>

#include "kernels/system/error.h"
#include "sharding/comm/exchange_purpose.h"

namespace aliquot {
namespace {

struct Extent {
  int64_t offset, count;
};

void append(std::string& to, const Extent& extent) { to.append(reinterpret_cast<const char*>(&extent), sizeof extent); }

void read(const StateTensor& tensor, const StatePiece& piece, int64_t first, int64_t count, std::byte* to) {
  const int64_t each = element_bytes(tensor.dtype);
  if (tensor.access != nullptr) return tensor.access->read(piece, first, count, to);
  std::memcpy(to, piece.bytes + first * each, static_cast<std::size_t>(count * each));
}

}  // namespace

TensorStream::TensorStream(Communicator& ranks, Ledger& ledger, int64_t staging_bytes)
    : ranks_(ranks),
      booking_(ledger, staging_bytes, Category::kStaging, "tensors streamed over ranks"),
      chunk_bytes_(staging_bytes / kStreamCopies) {}

/// `bytes`, then this rank's elements of [begin, end), each run of them after its extent.
std::string TensorStream::packed(std::string bytes, const StateTensor& tensor, int64_t begin, int64_t end) {
  const int64_t each = element_bytes(tensor.dtype);
  for (const StatePiece& piece : tensor.pieces) {
    const int64_t first = std::max(begin, piece.offset), last = std::min(end, piece.offset + piece.count);
    if (piece.copy || first >= last) continue;
    append(bytes, {first, last - first});
    const std::size_t at = bytes.size();
    bytes.resize(at + static_cast<std::size_t>((last - first) * each));
    read(tensor, piece, first - piece.offset, last - first, reinterpret_cast<std::byte*>(bytes.data() + at));
  }
  return bytes;
}

void TensorStream::run(std::string_view what, const StateTensor& tensor, const TakeElements& take) {
  const int64_t each = element_bytes(tensor.dtype), count = tensor.element_count();
  const int64_t most = std::max<int64_t>(1, chunk_bytes_ / each);
  const ExchangePurpose purpose("gather values");
  const std::string heading = fmt::format("{}\n", what);
  for (int64_t begin = 0; begin == 0 || begin < count; begin += most) {
    const int64_t end = std::min(count, begin + most);
    const auto all = ranks_.gather_objects(packed(heading, tensor, begin, end));
    for (std::size_t r = 0; r < all.size(); ++r) {
      const std::string_view theirs = std::string_view(all[r]).substr(0, all[r].find('\n'));
      const std::string_view first = std::string_view(all[0]).substr(0, all[0].find('\n'));
      if (theirs != first) throw UsageError(fmt::format("rank {} is {}, rank 0 is {}", r, theirs, first));
    }
    chunk_.resize(static_cast<std::size_t>((end - begin) * each));
    for (const std::string& rank : all) {
      for (std::size_t at = heading.size(); at < rank.size();) {
        Extent extent;
        std::memcpy(&extent, rank.data() + at, sizeof extent);
        const auto size = static_cast<std::size_t>(extent.count * each);
        std::memcpy(chunk_.data() + (extent.offset - begin) * each, rank.data() + at + sizeof extent, size);
        at += sizeof extent + size;
      }
    }
    take(begin, chunk_);
  }
}

}  // namespace aliquot
