#pragma once
// The simulated cuDNN, which replaces make_cudnn_attention() in programs for simulated GPUs. It computes attention by
// plain loops over the tensors that FusedAttentionProblem describes.

#include <cstdint>

namespace aliquot::simulated {

/// The behavior of plans that are made later.
struct CudnnBehavior {
  int64_t widest_head = 128;
  int64_t workspace_bytes = 4096;  // of a backward pass. A forward pass needs none
};
CudnnBehavior& cudnn_behavior();

/// How many passes were planned, and how many passes were enqueued.
int64_t planned_attention_passes();
int64_t enqueued_attention_passes();

}  // namespace aliquot::simulated
