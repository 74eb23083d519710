#pragma once
// The layers of the reference models for one kind of device. Models call them and do not depend on the device.

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "apps/models/cuda/fused_attention_tensors.h"
#include "apps/models/layers/attention.h"
#include "apps/models/layers/layers.h"
#include "apps/models/layers/loss.h"
#include "apps/models/model.h"
#include "apps/models/shape.h"
#include "kernels/device/device.h"
#include "kernels/gemm/operand_rounding.h"

namespace aliquot {

struct StagedTokens {
  const int32_t *tokens = nullptr, *targets = nullptr;
};

/// The layers of one rank. layers.h, attention.h and loss.h define the result of each layer in a function of the same
/// name. On a GPU, a call enqueues the work on the rank's compute stream, and all pointers are device pointers. Call
/// all functions from one thread.
class Backend {
 public:
  Backend() = default;
  Backend(const Backend&) = delete;
  Backend& operator=(const Backend&) = delete;
  virtual ~Backend() = default;

  /// Sets the stream of all later calls to the engine's compute stream. Call it before the first layer and before
  /// stage_tokens(). Host backends ignore the stream and compute on the calling thread and its pool.
  virtual void compute_on(Stream& stream) = 0;

  virtual void layer_norm_forward(const LayerNormRows& a) = 0;
  virtual void layer_norm_backward(const LayerNormBackwardRows& a) = 0;
  virtual void layer_norm_backward_weights(const LayerNormWeightColumns& a) = 0;
  virtual void linear_forward(const Linear& linear, ConstValues x, const float* residual, Values to) = 0;
  /// before_gelu = x * weight + bias, and to = gelu(before_gelu). Rows are contiguous. A GPU may compute the GELU from
  /// sums that are not rounded. If `needs_gelu` is false, the values at `to` are undefined, and before_gelu has the
  /// same bits.
  virtual void linear_gelu_forward(const Linear& linear, ConstValues x, Values before_gelu, Values to,
                                   bool needs_gelu = true) = 0;
  virtual void linear_forward_add(const Linear& linear, ConstValues x, Values to) = 0;
  virtual void linear_backward_input(const Linear& linear, ConstValues from, Values to, bool add = false) = 0;
  /// Computes the gradient of before_gelu, where x = gelu(before_gelu): to = from * weight^T * gelu'(before_gelu).
  virtual void linear_gelu_backward_input(const Linear& linear, ConstValues from, ConstValues before_gelu,
                                          Values to) = 0;
  virtual void linear_backward_weights(const Linear& linear, ConstValues x, ConstValues from,
                                       const LinearGradients& to) = 0;
  virtual void sum_columns(const ColumnSums& a) = 0;
  virtual void head_norms_forward(const HeadNorms& a) = 0;
  virtual void head_norms_backward(const HeadNormsBackward& a) = 0;
  virtual void head_norms_backward_weight(const HeadNormsWeight& a) = 0;
  virtual void gelu_forward(Values to, ConstValues x, int64_t count) = 0;
  virtual void gelu_backward(Values gradient, ConstValues x, int64_t count) = 0;
  virtual void gated_forward(Values to, const GatedElements& elements) = 0;
  virtual void gated_backward(ConstValues from, const GatedElements& elements) = 0;
  virtual void rotary_angles(const ModelShape& shape, int64_t sequence, float* cosines, float* sines,
                             int64_t first = 0) = 0;
  virtual void rotate(const Rotary& rotary, Values x) = 0;
  virtual void convert(Values to, ConstValues from, int64_t count) = 0;
  virtual void clear(Values to, int64_t count) = 0;
  virtual void add(float* to, const float* from, int64_t count) = 0;
  virtual void embedding_forward(const EmbeddingRows& embedding, ConstValues table, float* to) = 0;
  virtual void embedding_backward(const EmbeddingRows& embedding, const float* from, Values table_gradient,
                                  bool add = true) = 0;
  virtual void positions_forward(const Positions& positions, ConstValues table, const float* from, float* to) = 0;
  virtual void positions_backward(const Positions& positions, const float* from, Values table_gradient, bool add) = 0;
  virtual void attention_forward(const AttentionForward& a) = 0;
  virtual void attention_backward(const AttentionBackward& a) = 0;
  virtual void loss_forward(const LossForward& a) = 0;
  virtual void loss_statistics(const LossForward& a, float* part) = 0;
  virtual void loss_of_parts(const LossForward& a, const SplitParts& parts) = 0;
  virtual void loss_backward(const LossBackward& a) = 0;

  /// Waits for all earlier layers, and copies their result at `from` to host memory.
  virtual void read(const float* from, std::span<float> to) = 0;
  /// Waits for the last loss_forward() or loss_of_parts() and returns its result.
  virtual double loss_sum() = 0;
  /// Returns addresses at which the layers can read these token ids until the next call. On a GPU, copies the ids to
  /// the device.
  virtual StagedTokens stage_tokens(const TokenBatch& batch) = 0;

  /// See Model::stage_batch(). Until the next stage_tokens() or select_batch(), losses are those of the selected slot.
  virtual void stage_batch(int slot, const TokenBatch& batch) = 0;
  virtual StagedTokens select_batch(int slot) = 0;
  /// Waits until the device has run all work that was enqueued so far.
  virtual double loss_sum(int slot) = 0;
  /// Returns the address on the GPU at which the layers read the factor that multiplies the loss. It stays the same.
  /// Returns null on hosts and before compute_on(). Call it outside of a captured step.
  virtual const float* stage_loss_factor(float factor) = 0;

  /// The required sizes of `scratch` for attention and for a matrix product, in fp32 elements.
  virtual int64_t attention_scratch_elements(const AttentionShape& shape, DType type) const = 0;
  virtual int64_t product_scratch_elements(DType operands, DType result) const = 0;
  virtual LogitTiles logit_tiles(DType compute) const = 0;
  /// The size of LayerScratch for the gradients of an embedding and of a norm's weight and bias. 0 on hosts.
  virtual int64_t row_sum_scratch_elements(int64_t rows, int64_t width) const = 0;
  /// Whether linear layers with an Fp8Linear::scratch have fp8 operands, where their extents allow it.
  virtual bool has_fp8_products() const { return false; }

  /// Names the kernels of attention and, if they do not compute a shape whose scratch was asked for, the reason. Empty:
  /// the project's own kernels.
  virtual std::string attention_text() const { return {}; }
};

/// Computes on the threads of `pool`, which must outlive the backend. Scratch sizes are for `threads` threads; 0 means
/// all threads of the pool.
std::unique_ptr<Backend> make_host_backend(ThreadPool& pool, int threads = 0);

/// A host backend that reports the scratch sizes of a GPU, for plans on machines without one.
std::unique_ptr<Backend> make_planned_gpu_backend(ThreadPool& pool, OperandRounding rounding,
                                                  AttentionKernels attention);

}  // namespace aliquot
