#include "checkpoint/converting_tensor.h"

#include <algorithm>

#include "checkpoint/convert.h"
#include "kernels/system/error.h"
#include "sharding/pieces.h"

namespace aliquot {
namespace {

constexpr int64_t kElementsAtOnce = 32 << 10;

}  // namespace

ConvertingTensor::ConvertingTensor(const StateTensor& target, DType from)
    : target_(target), tensor_{target.path, target.shape, from, target.pieces, this} {}

void ConvertingTensor::read(const StatePiece&, int64_t, int64_t, std::byte*) const {
  throw FaultError("a tensor that is only loaded was to be saved");
}

void ConvertingTensor::write(const StatePiece& piece, int64_t first, int64_t count, const std::byte* from) const {
  // The target's own piece: its access may know it by where it stands.
  const StatePiece& own = target_.pieces[static_cast<size_t>(&piece - tensor_.pieces.data())];
  const int64_t from_bytes = element_bytes(tensor_.dtype), to_bytes = element_bytes(target_.dtype);
  if (target_.access == nullptr) {
    return convert(target_.dtype, own.bytes + first * to_bytes, tensor_.dtype, from, count);
  }
  std::vector<std::byte> chunk(static_cast<size_t>(std::min(count, kElementsAtOnce) * to_bytes));
  for (int64_t done = 0; done < count; done += kElementsAtOnce) {
    const int64_t part = std::min(kElementsAtOnce, count - done);
    convert(target_.dtype, chunk.data(), tensor_.dtype, from + done * from_bytes, part);
    write_piece(target_, own, first + done, std::span(chunk).first(static_cast<size_t>(part * to_bytes)));
  }
}

}  // namespace aliquot
