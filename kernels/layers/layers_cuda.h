#pragma once
// Layers on a GPU that split_layers.h does not declare. RowLoops defines the result of each layer. Statistics and sums
// are fp32 for arrays of any type. The order of all sums is fixed.

#include <cstdint>

#include "kernels/device/stream.h"
#include "kernels/layers/row_loops.h"

namespace aliquot::cuda {

void layer_norm_forward(Stream& stream, const LayerNormRows& a);
void layer_norm_backward(Stream& stream, const LayerNormBackwardRows& a);
/// Ignores a.begin and a.end: computes all columns.
void layer_norm_backward_weights(Stream& stream, const LayerNormWeightColumns& a);

/// Sets the statistics of all rows to their initial values.
void initialize_logits(Stream& stream, const RunningRowStatistics& rows, float* target_logits, int64_t count);
/// Also stores the logits of the targets in the tile.
void accumulate_logits(Stream& stream, const LogitTile& tile, const RunningRowStatistics& rows, const int32_t* targets,
                       float* target_logits);
/// Overwrites the logits with their gradients, like RowLoops::loss_backward().
void logits_backward(Stream& stream, const LogitTile& tile, const LossRows& rows);

}  // namespace aliquot::cuda
