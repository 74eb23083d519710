#include "engine/plan/slices.h"

#include <algorithm>
#include <fmt/format.h>

namespace aliquot {

Slice slice_of(const Plan& plan, int32_t flat, int32_t tensor, int coordinate) {
  const FlatSpec& spec = plan.flats[flat];
  const ParameterSpec& parameter = plan.model.units[spec.unit].parameters[spec.parameters[tensor]];
  return {parameter.tensor.shape, parameter.split, coordinate, plan.policy.tensor};
}

std::vector<Piece> slice_pieces(const Plan& plan, int32_t flat, int rank, int coordinate) {
  std::vector<Piece> pieces = plan.flats[flat].layout.pieces(rank);
  if (plan.flats[flat].gradients != TensorGradients::kSlice) return pieces;
  for (Piece& piece : pieces) {
    const int64_t end = slice_of(plan, flat, piece.tensor, coordinate).element_count();
    piece.count = std::min(piece.count, end - piece.tensor_offset);
  }
  std::erase_if(pieces, [](const Piece& piece) { return piece.count <= 0; });
  return pieces;
}

std::vector<Gap> slice_gaps(const Plan& plan, int32_t flat, int coordinate) {
  const FlatLayout& layout = plan.flats[flat].layout;
  std::vector<Gap> gaps;
  Gap gap{-1, 0, 0};  // the padding after the last slice
  for (int32_t t = 0; t < static_cast<int32_t>(layout.tensors().size()); ++t) {
    const int64_t count = slice_of(plan, flat, t, coordinate).element_count();
    gap.end = layout.tensor_offset(t);
    if (gap.end > gap.begin) gaps.push_back(gap);
    gap = {t, gap.end + count, 0};
  }
  gap.end = layout.flat_count();
  if (gap.end > gap.begin) gaps.push_back(gap);
  return gaps;
}

std::string block_text(const Plan& plan, int32_t flat, int64_t block, int coordinate) {
  const FlatLayout& layout = plan.flats[flat].layout;
  const int64_t element = block * kBlockElements, shard = layout.shard_count();
  for (const Piece& piece : slice_pieces(plan, flat, static_cast<int>(element / shard), coordinate)) {
    const int64_t in_piece = element % shard - piece.shard_offset;
    if (in_piece < 0 || in_piece >= piece.count) continue;
    const int64_t first = piece.tensor_offset + in_piece;
    return fmt::format("elements {} to {} of {}", first, first + std::min(kBlockElements, piece.count - in_piece) - 1,
                       layout.tensors()[piece.tensor].name);
  }
  return "";
}

}  // namespace aliquot
