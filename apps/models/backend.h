#pragma once
// What the reference models compute with: every layer, on one kind of device. The models themselves are written once.

#include <cstdint>
#include <memory>

#include "apps/models/layers/attention.h"
#include "apps/models/layers/layers.h"
#include "apps/models/layers/loss.h"
#include "apps/models/model.h"
#include "apps/models/shape.h"
#include "kernels/device/device.h"

namespace aliquot {

struct StagedTokens {
  const int32_t *tokens = nullptr, *targets = nullptr;
};

/// One rank's. Each call is as the function of that name in layers.h, attention.h or loss.h says, less the threads; on a GPU
/// it is enqueued on the rank's compute stream, and every pointer is one of that GPU's. Used from one thread.
class Backend {
 public:
  Backend() = default;
  Backend(const Backend&) = delete;
  Backend& operator=(const Backend&) = delete;
  virtual ~Backend() = default;

  /// The engine's compute stream, which is there once it has its memory; before the first layer, and stage_tokens(). A host's
  /// layers are computed by the caller.
  virtual void compute_on(Stream& stream) = 0;

  virtual void layer_norm_forward(const LayerNormRows& a) = 0;
  virtual void layer_norm_backward(const LayerNormBackwardRows& a) = 0;
  virtual void layer_norm_backward_weights(const LayerNormWeightColumns& a) = 0;
  virtual void linear_forward(const Linear& linear, ConstValues x, const float* residual, Values to) = 0;
  virtual void linear_backward_input(const Linear& linear, ConstValues from, Values to, bool add = false) = 0;
  virtual void linear_backward_weights(const Linear& linear, ConstValues x, ConstValues from,
                                       const LinearGradients& to) = 0;
  virtual void gelu_forward(Values to, ConstValues x, int64_t count) = 0;
  virtual void gelu_backward(Values gradient, ConstValues x, int64_t count) = 0;
  virtual void gated_forward(Values to, const GatedElements& elements) = 0;
  virtual void gated_backward(ConstValues from, const GatedElements& elements) = 0;
  virtual void rotary_angles(const ModelShape& shape, int64_t sequence, float* cosines, float* sines) = 0;
  virtual void rotate(const Rotary& rotary, Values x) = 0;
  virtual void convert(Values to, ConstValues from, int64_t count) = 0;
  virtual void embedding_forward(const Embedding& embedding, ConstValues table, float* to) = 0;
  virtual void embedding_backward(const Embedding& embedding, const float* from, Values table_gradient,
                                  bool add = true) = 0;
  virtual void positions_forward(const Positions& positions, ConstValues table, const float* from, float* to) = 0;
  virtual void positions_backward(const Positions& positions, const float* from, Values table_gradient, bool add) = 0;
  virtual void attention_forward(const AttentionForward& a) = 0;
  virtual void attention_backward(const AttentionBackward& a) = 0;
  virtual void loss_forward(const LossForward& a) = 0;
  virtual void loss_backward(const LossBackward& a) = 0;

  /// Of the last loss_forward(); waits for it where it is still under way.
  virtual double loss_sum() = 0;
  /// Where the layers find these ids, until the next call; on a GPU a copy.
  virtual StagedTokens stage_tokens(const TokenBatch& batch) = 0;

  /// Elements of fp32 that the `scratch` of an attention and of a product has.
  virtual int64_t attention_scratch_elements(const AttentionShape& shape, DType type) const = 0;
  virtual int64_t product_scratch_elements(DType operands, DType result) const = 0;
  /// Whether logits are made in fp32 before they are kept: see LossBuffers.
  virtual bool makes_tiles_in_fp32(DType compute) const = 0;
};

/// On the threads of a pool, which must outlive it. `threads`: that there is scratch for; 0: as many as the pool has.
std::unique_ptr<Backend> make_host_backend(ThreadPool& pool, int threads = 0);

/// The host's with the scratch of a GPU: to plan for one that is not here.
std::unique_ptr<Backend> make_planned_gpu_backend(ThreadPool& pool);

}  // namespace aliquot
