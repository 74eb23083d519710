#include "apps/models/cuda/backend_cuda.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>
#include <vector>

#include "apps/models/cuda/gpu_scratch.h"
#include "apps/models/cuda/layers_cuda.h"
#include "apps/models/cuda/product_cuda.h"
#include "apps/models/layers/linear_products.h"
#include "apps/models/layers/loss_tiles.h"
#include "apps/models/layers/rotary_angles.h"
#include "kernels/device/device_cuda.h"
#include "kernels/system/error.h"

namespace aliquot {
namespace {

/// Waits for one event, not for later work of the stream. Meanwhile polls the watchdogs, which throw if the stream can
/// no longer finish.
void wait_for_event(CudaDevice& device, const Event& event) {
  while (!event.passed()) device.poll_watchdogs();
}

/// Copies host data to a GPU through two pinned staging buffers: one can be filled while the GPU still reads the other.
class BatchUploader {
 public:
  explicit BatchUploader(CudaDevice& device) : device_(device) {}

  /// Waits until the GPU has read the previous contents of the staging buffer, then enqueues a copy. Returns the
  /// address of the copy on the GPU. The data stays valid until the second call after this one.
  const std::byte* send(Stream& stream, const void* from, int64_t size_bytes) {
    StagingSlot& slot = slots_[next_];
    next_ = 1 - next_;
    if (slot.size_bytes < size_bytes) make(slot, size_bytes);
    wait_for_event(device_, *slot.sent);
    std::memcpy(slot.pinned->data(), from, static_cast<size_t>(size_bytes));
    cuda_kernels().copy(stream, slot.gpu->data(), slot.pinned->data(), size_bytes);
    stream.record(*slot.sent);
    return slot.gpu->data();
  }

 private:
  struct StagingSlot {
    int64_t size_bytes = 0;
    std::unique_ptr<PinnedMemory> pinned;
    std::unique_ptr<GpuMemory> gpu;
    std::unique_ptr<Event> sent;  // passed() is true until the event is first recorded
  };

  void make(StagingSlot& slot, int64_t size_bytes) {
    device_.make_current();
    slot = {size_bytes, std::make_unique<PinnedMemory>(&device_, size_bytes, "a micro-batch"),
            std::make_unique<GpuMemory>(device_, size_bytes, "a micro-batch"), device_.make_event()};
  }

  CudaDevice& device_;
  std::array<StagingSlot, 2> slots_;
  size_t next_ = 0;
};

/// Returns one array with the tokens, the targets, the sorted tokens, and the row of each sorted token.
std::vector<int32_t> pack_batch(const TokenBatch& batch) {
  const size_t count = batch.tokens.size();
  std::vector<int32_t> all(4 * count);
  std::ranges::copy(batch.tokens, all.begin());
  std::ranges::copy(batch.targets, all.begin() + static_cast<std::ptrdiff_t>(count));
  const std::span sorted(all.data() + 2 * count, count), rows(all.data() + 3 * count, count);
  sort_rows_by_token(batch.tokens, sorted, rows);
  return all;
}

struct CudaLogitLoops {
  Stream& stream;
  CudaProducts& products;
  double* sum;

  void multiply(const Product& product) const { products.multiply(stream, product); }
  void begin(const RunningRowStatistics& rows, float* target_logits, int64_t count) const {
    cuda::initialize_logits(stream, rows, target_logits, count);
  }
  void accumulate(const LogitTile& tile, const RunningRowStatistics& rows, const int32_t* targets,
                  float* target_logits) const {
    cuda::accumulate_logits(stream, tile, rows, targets, target_logits);
  }
  void keep(const LogitTile& to, const LogitTile& computed, const float* tile_maxima) const {
    cuda::keep_logits(stream, to, computed, tile_maxima);
  }
  void backward(const LogitTile& tile, const LossRows& rows, const float* tile_maxima) const {
    cuda::logits_backward(stream, tile, rows, tile_maxima);
  }
  void finish(const LossBuffers& buffers, const int32_t* targets, const float* target_logits, int64_t count) const {
    cuda::reduce_loss(stream, buffers, targets, target_logits, count, sum);
  }
};

class CudaBackend final : public Backend {
 public:
  explicit CudaBackend(CudaDevice& device)
      : batches_(device),
        angles_(device),
        sum_(&device, sizeof(double), "the loss"),
        loss_event_(device.make_event()),
        result_event_(device.make_event()) {}

  void compute_on(Stream& stream) override { stream_ = &stream; }

  void layer_norm_forward(const LayerNormRows& a) override { cuda::layer_norm_forward(*stream_, a); }
  void layer_norm_backward(const LayerNormBackwardRows& a) override { cuda::layer_norm_backward(*stream_, a); }
  void layer_norm_backward_weights(const LayerNormWeightColumns& a) override {
    cuda::layer_norm_backward_weights(*stream_, a);
  }

  void linear_forward(const Linear& l, ConstValues x, const float* residual, Values to) override {
    if (l.bias.data != nullptr && residual == nullptr) {
      const Product product = forward_product(l, x, to, false);
      if (products_.adds_bias(product, l.bias)) return products_.multiply(*stream_, product, l.bias);
    }
    const bool starts = l.bias.data != nullptr || residual != nullptr;
    // Stores bias and residual in `to` before the product adds to it, so that the sum is rounded only once.
    if (starts) cuda::add_bias(*stream_, {to, residual, l.bias, l.rows, l.outputs, output_stride(l)});
    products_.multiply(*stream_, forward_product(l, x, to, starts));
  }
  void linear_forward_add(const Linear& l, ConstValues x, Values to) override {
    products_.multiply(*stream_, forward_product(l, x, to, true));
  }
  void linear_backward_input(const Linear& l, ConstValues from, Values to, bool add) override {
    products_.multiply(*stream_, input_product(l, from, to, add));
  }
  void linear_backward_weights(const Linear& l, ConstValues x, ConstValues from, const LinearGradients& to) override {
    products_.multiply(*stream_, weight_product(l, x, from, to));
    if (to.bias.data != nullptr) sum_columns({to.bias, from, l.rows, output_stride(l), 0, l.outputs, to.add});
  }
  void sum_columns(const ColumnSums& a) override { cuda::sum_columns(*stream_, a); }
  void head_norms_forward(const HeadNorms& a) override { cuda::head_norms_forward(*stream_, a); }
  void head_norms_backward(const HeadNormsBackward& a) override { cuda::head_norms_backward(*stream_, a); }
  void head_norms_backward_weight(const HeadNormsWeight& a) override { cuda::head_norms_backward_weight(*stream_, a); }

  void gelu_forward(Values to, ConstValues x, int64_t count) override { cuda::gelu_forward(*stream_, to, x, count); }
  void gelu_backward(Values gradient, ConstValues x, int64_t count) override {
    cuda::gelu_backward(*stream_, gradient, x, count);
  }
  void gated_forward(Values to, const GatedElements& elements) override { cuda::gated_forward(*stream_, to, elements); }
  void gated_backward(ConstValues from, const GatedElements& elements) override {
    cuda::gated_backward(*stream_, from, elements);
  }
  void rotary_angles(const ModelShape& shape, int64_t sequence, float* cosines, float* sines, int64_t first) override {
    const int64_t row_bytes = shape.head_width() / 2 * static_cast<int64_t>(sizeof(float));
    upload_angles(shape, sequence);
    const int64_t size_bytes = (sequence - first) * row_bytes;
    cuda_kernels().copy(*stream_, cosines, device_angles_ + first * row_bytes, size_bytes);
    cuda_kernels().copy(*stream_, sines, device_angles_ + (angle_rows_ + first) * row_bytes, size_bytes);
  }
  void rotate(const Rotary& rotary, Values x) override { cuda::rotate(*stream_, rotary, x); }
  void convert(Values to, ConstValues from, int64_t count) override {
    cuda_kernels().cast(*stream_, to.data, to.type, from.data, from.type, count);
  }
  void clear(Values to, int64_t count) override { cuda_kernels().fill(*stream_, to.data, to.type, 0.0f, count); }
  void add(float* to, const float* from, int64_t count) override { cuda_kernels().add(*stream_, to, from, count); }
  void embedding_forward(const EmbeddingRows& embedding, ConstValues table, float* to) override {
    split_embedding_forward(*stream_, embedding, table, to);
  }
  void embedding_backward(const EmbeddingRows& embedding, const float* from, Values table_gradient, bool add) override {
    if (!add) clear(table_gradient, embedding.entries * embedding.width);
    split_embedding_backward(*stream_, embedding, sorted_, from, table_gradient);
  }
  void positions_forward(const Positions& positions, ConstValues table, const float* from, float* to) override {
    cuda::positions_forward(*stream_, positions, table, from, to);
  }
  void positions_backward(const Positions& positions, const float* from, Values table_gradient, bool add) override {
    cuda::positions_backward(*stream_, positions, from, table_gradient, add);
  }
  void attention_forward(const AttentionForward& a) override { cuda::attention_forward(*stream_, a); }
  void attention_backward(const AttentionBackward& a) override { cuda::attention_backward(*stream_, a); }

  void loss_forward(const LossForward& a) override {
    tiled_loss_statistics(logit_loops(), a);
    finish_loss(logit_loops(), a);
    stream_->record(*loss_event_);
  }
  void loss_statistics(const LossForward& a, float* part) override { tiled_loss_part(logit_loops(), a, part); }
  void loss_of_parts(const LossForward& a, const SplitParts& parts) override {
    split_loss_forward(*stream_, split_loss(a, parts, logit_loops().sum));
    stream_->record(*loss_event_);
  }
  void loss_backward(const LossBackward& a) override {
    tiled_loss_backward(CudaLogitLoops{*stream_, products_, nullptr}, a);
  }
  void read(const float* from, std::span<float> to) override {
    const auto size_bytes = static_cast<int64_t>(to.size_bytes());
    if (!result_ || result_bytes_ < size_bytes) {
      result_ = std::make_unique<PinnedMemory>(&cuda_device(*stream_), size_bytes, "results of the model");
      result_bytes_ = size_bytes;
    }
    cuda_kernels().copy(*stream_, result_->data(), from, size_bytes);
    stream_->record(*result_event_);
    wait_for_event(cuda_device(*stream_), *result_event_);
    std::memcpy(to.data(), result_->data(), to.size_bytes());
  }
  double loss_sum() override {
    wait_for_event(cuda_device(*stream_), *loss_event_);
    double sum = 0;
    std::memcpy(&sum, sum_.data(), sizeof sum);
    return sum;
  }

  StagedTokens stage_tokens(const TokenBatch& batch) override {
    const std::vector<int32_t> all = pack_batch(batch);
    const size_t count = batch.tokens.size();
    const std::byte* on_gpu = batches_.send(*stream_, all.data(), static_cast<int64_t>(all.size() * sizeof(int32_t)));
    const auto* ids = reinterpret_cast<const int32_t*>(on_gpu);
    sorted_ = {ids + 2 * count, ids + 3 * count};
    return {ids, ids + count};
  }

  int64_t attention_scratch_elements(const AttentionShape& shape, DType) const override {
    return gpu_attention_scratch_elements(shape);
  }
  int64_t product_scratch_elements(DType, DType) const override {
    return kGpuProductScratchBytes / element_bytes(DType::kFloat32);
  }
  bool makes_tiles_in_fp32(DType compute) const override { return compute != DType::kFloat32; }

 private:
  /// Computes and uploads the angles of at least `sequence` positions, unless they already are on the GPU. Later, each
  /// use of a block copies the angles of its positions to its scratch memory. With kDynamic, the angles depend on the
  /// length of the sequence.
  void upload_angles(const ModelShape& shape, int64_t sequence) {
    constexpr int64_t kRowsAtOnce = 256;  // decoding asks for one more position at a time
    const bool depends = shape.rope.scaling == RopeScaling::kDynamic;
    if (depends ? angle_rows_ == sequence : angle_rows_ >= sequence) return;
    angle_rows_ = depends ? sequence : (sequence + kRowsAtOnce - 1) / kRowsAtOnce * kRowsAtOnce;
    const auto count = static_cast<size_t>(angle_rows_ * shape.head_width() / 2);
    angle_values_.resize(2 * count);
    compute_rotary_angles(shape, angle_rows_, angle_values_.data(), angle_values_.data() + count);
    device_angles_ = angles_.send(*stream_, angle_values_.data(), static_cast<int64_t>(2 * count * sizeof(float)));
  }

  /// finish() writes the sum to pinned host memory. loss_sum() waits for the event and then reads it.
  CudaLogitLoops logit_loops() { return {*stream_, products_, reinterpret_cast<double*>(sum_.data())}; }

  Stream* stream_ = nullptr;
  CudaProducts products_;
  BatchUploader batches_, angles_;
  TokenSortedRows sorted_;
  std::vector<float> angle_values_;
  const std::byte* device_angles_ = nullptr;
  int64_t angle_rows_ = 0;  // positions in device_angles_
  PinnedMemory sum_;
  std::unique_ptr<PinnedMemory> result_;  // of read()
  int64_t result_bytes_ = 0;
  std::unique_ptr<Event> loss_event_, result_event_;
};

}  // namespace

std::unique_ptr<Backend> make_cuda_backend(Device& device) {
  CudaDevice& gpu = cuda_device(device);
  gpu.make_current();
  return std::make_unique<CudaBackend>(gpu);
}

}  // namespace aliquot
