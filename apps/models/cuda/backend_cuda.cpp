#include "apps/models/cuda/backend_cuda.h"

#include <algorithm>
#include <cstring>
#include <list>
#include <map>
#include <numeric>
#include <optional>
#include <stdexcept>
#include <vector>

#include "apps/models/cuda/fp8_linears_cuda.h"
#include "apps/models/cuda/fused_attention_cuda.h"
#include "apps/models/cuda/gpu_scratch.h"
#include "apps/models/cuda/layers_cuda.h"
#include "apps/models/cuda/uploads_cuda.h"
#include "apps/models/layers/linear_products.h"
#include "apps/models/layers/loss_tiles.h"
#include "apps/models/layers/rotary_angles.h"
#include "kernels/device/device_cuda.h"
#include "kernels/device/work_graph.h"
#include "kernels/gemm/product_cuda.h"
#include "kernels/system/error.h"

namespace aliquot {
namespace {

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
  void keep(const LogitTile&, const LogitTile&, const float*) const {
    throw std::logic_error("a GPU computes logits in the type in which they are stored");
  }
  void backward(const LogitTile& tile, const LossRows& rows, const float*) const {
    cuda::logits_backward(stream, tile, rows);
  }
  void finish(const LossBuffers& buffers, const int32_t* targets, const float* target_logits, int64_t count) const {
    cuda::reduce_loss(stream, buffers, targets, target_logits, count, sum);
  }
};

class CudaBackend final : public Backend {
 public:
  CudaBackend(CudaDevice& device, const ProductSettings& products, AttentionKernels attention)
      : device_(device),
        rounding_(products.rounding),
        products_(device, products),
        fp8_(products_),
        batches_(device),
        loss_factor_(device),
        loss_(device),
        loss_event_(device.make_event()),
        result_event_(device.make_event()) {
    if (attention == AttentionKernels::kCudnn) fused_attention_.emplace(make_cudnn_attention(device));
  }

  void compute_on(Stream& stream) override { stream_ = &stream; }

  void layer_norm_forward(const LayerNormRows& a) override { cuda::layer_norm_forward(*stream_, a); }
  void layer_norm_backward(const LayerNormBackwardRows& a) override { cuda::layer_norm_backward(*stream_, a); }
  void layer_norm_backward_weights(const LayerNormWeightColumns& a) override {
    cuda::layer_norm_backward_weights(*stream_, a);
  }

  void linear_forward(const Linear& l, ConstValues x, const float* residual, Values to) override {
    multiply_with_bias(l, fp8_.forward(*stream_, l, x, forward_product(l, x, to, false)), residual);
  }
  void linear_gelu_forward(const Linear& l, ConstValues x, Values before_gelu, Values to, bool needs_gelu) override {
    GpuProduct product = fp8_.forward(*stream_, l, x, forward_product(l, x, to, false));
    const ProductEpilogue gelu{.bias = l.bias, .gelu = ProductEpilogue::Gelu::kForward, .gelu_input = before_gelu};
    // Computes the GELU even if it is not needed, because another product might give other bits.
    if (fuses_gelu() && products_.supports(product, gelu)) return products_.multiply(*stream_, product, gelu);
    product.to = before_gelu;
    multiply_with_bias(l, product, nullptr);
    if (needs_gelu) gelu_forward(to, before_gelu, l.rows * l.outputs);
  }
  void linear_forward_add(const Linear& l, ConstValues x, Values to) override {
    products_.multiply(*stream_, forward_product(l, x, to, true));
  }
  void linear_backward_input(const Linear& l, ConstValues from, Values to, bool add) override {
    products_.multiply(*stream_, fp8_.backward_input(*stream_, l, from, input_product(l, from, to, add)));
  }
  void linear_gelu_backward_input(const Linear& l, ConstValues from, ConstValues before_gelu, Values to) override {
    const GpuProduct product = fp8_.backward_input(*stream_, l, from, input_product(l, from, to, false));
    const ProductEpilogue gelu{.gelu = ProductEpilogue::Gelu::kBackward,
                               .gelu_input = {const_cast<void*>(before_gelu.data), before_gelu.type}};
    if (fuses_gelu() && products_.supports(product, gelu)) return products_.multiply(*stream_, product, gelu);
    products_.multiply(*stream_, product);
    gelu_backward(to, before_gelu, l.rows * l.inputs);
  }
  void linear_backward_weights(const Linear& l, ConstValues x, ConstValues from, const LinearGradients& to) override {
    products_.multiply(*stream_, fp8_.backward_weights(*stream_, l, x, from, weight_product(l, x, from, to)));
    if (to.bias.data == nullptr) return;
    // The product has ended before the sums begin.
    const LayerScratch scratch{l.scratch, product_scratch_elements(from.type, to.weight.type)};
    sum_columns({to.bias, from, l.rows, output_stride(l), 0, l.outputs, to.add, scratch});
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
    const AngleTable& table = angles_of(shape, sequence);
    const int64_t size_bytes = (sequence - first) * row_bytes;
    cuda_kernels().copy(*stream_, cosines, table.on_gpu + first * row_bytes, size_bytes);
    cuda_kernels().copy(*stream_, sines, table.on_gpu + (table.rows + first) * row_bytes, size_bytes);
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
  void attention_forward(const AttentionForward& a) override {
    const bool fused = a.cached.rows.data == nullptr && fuses_attention(a.shape, a.qkv.type);
    fused ? fused_attention_->forward(*stream_, a) : cuda::attention_forward(*stream_, a);
  }
  void attention_backward(const AttentionBackward& a) override {
    const bool fused = fuses_attention(a.shape, a.qkv.type);
    fused ? fused_attention_->backward(*stream_, a) : cuda::attention_backward(*stream_, a);
  }

  void loss_forward(const LossForward& a) override {
    tiled_loss_statistics(logit_loops(), a);
    finish_loss(logit_loops(), a);
    record_loss();
  }
  void loss_statistics(const LossForward& a, float* part) override { tiled_loss_part(logit_loops(), a, part); }
  void loss_of_parts(const LossForward& a, const SplitParts& parts) override {
    split_loss_forward(*stream_, split_loss(a, parts, logit_loops().sum));
    record_loss();
  }
  void loss_backward(const LossBackward& a) override {
    tiled_loss_backward(CudaLogitLoops{*stream_, products_, nullptr}, a);
  }
  void read(const float* from, std::span<float> to) override {
    const auto size_bytes = static_cast<int64_t>(to.size_bytes());
    if (!result_ || result_bytes_ < size_bytes) {
      result_ = std::make_unique<PinnedMemory>(&device_, size_bytes, "results of the model");
      result_bytes_ = size_bytes;
    }
    cuda_kernels().copy(*stream_, result_->data(), from, size_bytes);
    stream_->record(*result_event_);
    wait_for_event(device_, *result_event_);
    std::memcpy(to.data(), result_->data(), to.size_bytes());
  }
  double loss_sum() override {
    wait_for_event(device_, *loss_event_);
    return loss_.value();
  }
  double loss_sum(int slot) override {
    stream_->record(*loss_event_);
    wait_for_event(device_, *loss_event_);
    return slots_.at(slot).loss.value();
  }

  StagedTokens stage_tokens(const TokenBatch& batch) override {
    selected_loss_ = &loss_;
    const std::vector<int32_t> all = pack_batch(batch);
    const auto size_bytes = static_cast<int64_t>(all.size() * sizeof(int32_t));
    return select(batches_.send(*stream_, all.data(), size_bytes), batch.tokens.size());
  }
  void stage_batch(int slot, const TokenBatch& batch) override {
    const std::vector<int32_t> all = pack_batch(batch);
    Slot& to = slots_.try_emplace(slot, device_).first->second;
    if (to.count != 0 && to.count != batch.tokens.size())
      throw std::logic_error("the size of a micro-batch has changed");
    to.ids = to.upload.send(*stream_, all.data(), static_cast<int64_t>(all.size() * sizeof(int32_t)));
    to.count = batch.tokens.size();
  }
  StagedTokens select_batch(int slot) override {
    Slot& from = slots_.at(slot);
    selected_loss_ = &from.loss;
    return select(from.ids, from.count);
  }
  const float* stage_loss_factor(float factor) override {
    if (stream_ == nullptr) return nullptr;
    if (staged_factor_ != nullptr && factor == factor_value_) return staged_factor_;
    factor_value_ = factor;
    staged_factor_ = reinterpret_cast<const float*>(loss_factor_.send(*stream_, &factor, sizeof(factor)));
    return staged_factor_;
  }

  /// Also plans the shape, so that a run learns at its start whether the library supports it.
  int64_t attention_scratch_elements(const AttentionShape& shape, DType type) const override {
    if (!fused_attention_) return gpu_attention_scratch_elements(shape);
    fused_attention_->supports(shape, type);
    return gpu_attention_scratch_elements(shape, type, AttentionKernels::kCudnn);
  }
  int64_t product_scratch_elements(DType, DType) const override {
    return kGpuProductScratchBytes / element_bytes(DType::kFloat32);
  }
  LogitTiles logit_tiles(DType compute) const override { return gpu_logit_tiles(compute); }
  int64_t row_sum_scratch_elements(int64_t rows, int64_t width) const override {
    return gpu_row_sum_scratch_elements(rows, width);
  }
  bool has_fp8_products() const override { return rounding_ == OperandRounding::kFp8; }
  std::string attention_text() const override {
    return fused_attention_ ? fused_attention_->describe() : std::string();
  }

 private:
  /// Computes the product of linear_forward(), and adds bias and residual.
  void multiply_with_bias(const Linear& l, GpuProduct product, const float* residual) {
    const ProductEpilogue sums{.added = residual, .bias = l.bias};
    if (products_.supports(product, sums)) return products_.multiply(*stream_, product, sums);
    product.add = l.bias.data != nullptr || residual != nullptr;
    // Stores bias and residual before the product adds to them, so that the sum is rounded only once.
    if (product.add) cuda::add_bias(*stream_, {product.to, residual, l.bias, l.rows, l.outputs, output_stride(l)});
    products_.multiply(*stream_, product);
  }

  /// A loss in pinned host memory.
  class Loss {
   public:
    explicit Loss(CudaDevice& device) : pinned_(&device, sizeof(double), "the loss") {}
    double* address() const { return reinterpret_cast<double*>(pinned_.data()); }
    double value() const {
      double sum = 0;
      std::memcpy(&sum, pinned_.data(), sizeof sum);
      return sum;
    }

   private:
    PinnedMemory pinned_;
  };

  /// A micro-batch of stage_batch().
  struct Slot {
    explicit Slot(CudaDevice& device) : upload(device), loss(device) {}
    Upload upload;
    Loss loss;
    const std::byte* ids = nullptr;
    size_t count = 0;
  };

  /// The angles of the first `rows` positions. `is_kept`: a graph may read them in each launch.
  struct AngleTable {
    explicit AngleTable(CudaDevice& device) : upload(device) {}
    int64_t rows = 0;
    bool is_kept = false;
    Upload upload;
    const std::byte* on_gpu = nullptr;
  };

  /// Returns angles of at least `sequence` positions. Computes and uploads them, unless they already are on the GPU.
  /// Later, each use of a block copies the angles of its positions to its scratch memory. With kDynamic, the angles
  /// depend on the length of the sequence.
  const AngleTable& angles_of(const ModelShape& shape, int64_t sequence) {
    const bool depends = shape.rope.scaling == RopeScaling::kDynamic;
    const auto fits = [&](const AngleTable& table) {
      return depends ? table.rows == sequence : table.rows >= sequence;
    };
    auto found = std::ranges::find_if(angles_, fits);
    if (found == angles_.end()) {
      // Decoding asks for one more position at a time, and needs only the last table.
      found = std::ranges::find(angles_, false, &AngleTable::is_kept);
      if (found == angles_.end()) found = angles_.emplace(angles_.end(), device_);
      upload_angles(*found, shape, sequence);
    }
    if (selected_loss_ != &loss_) found->is_kept = true;  // the passes of a step that may run as a graph
    return *found;
  }

  void upload_angles(AngleTable& table, const ModelShape& shape, int64_t sequence) {
    constexpr int64_t kRowsAtOnce = 256;
    const bool depends = shape.rope.scaling == RopeScaling::kDynamic;
    const int64_t rows = depends ? sequence : (sequence + kRowsAtOnce - 1) / kRowsAtOnce * kRowsAtOnce;
    const auto count = static_cast<size_t>(rows * shape.head_width() / 2);
    angle_values_.resize(2 * count);
    compute_rotary_angles(shape, rows, angle_values_.data(), angle_values_.data() + count);
    table.rows = 0;  // if the upload throws
    table.on_gpu = table.upload.send(*stream_, angle_values_.data(), static_cast<int64_t>(2 * count * sizeof(float)));
    table.rows = rows;
  }

  /// On GPUs before Hopper, cuBLASLt computes the GELU of bf16 and fp32 products in a slower kernel.
  bool fuses_gelu() const { return device_.capability() >= 90; }
  bool fuses_attention(const AttentionShape& shape, DType type) {
    return fused_attention_ && fused_attention_->supports(shape, type);
  }

  /// Makes the ids of pack_batch() at `on_gpu` those of the layers.
  StagedTokens select(const std::byte* on_gpu, size_t count) {
    const auto* ids = reinterpret_cast<const int32_t*>(on_gpu);
    sorted_ = {ids + 2 * count, ids + 3 * count};
    return {ids, ids + count};
  }

  /// loss_sum() waits for this event. The loss of a captured step belongs to a slot.
  void record_loss() {
    if (!is_captured(*stream_)) stream_->record(*loss_event_);
  }

  /// finish() writes the sum to pinned host memory.
  CudaLogitLoops logit_loops() { return {*stream_, products_, selected_loss_->address()}; }

  CudaDevice& device_;
  Stream* stream_ = nullptr;
  OperandRounding rounding_;
  CudaProducts products_;
  Fp8Linears fp8_;
  mutable std::optional<FusedAttention> fused_attention_;
  AlternatingUpload batches_;
  Upload loss_factor_;
  float factor_value_ = 1;
  const float* staged_factor_ = nullptr;
  std::map<int, Slot> slots_;
  TokenSortedRows sorted_;
  std::vector<float> angle_values_;
  std::list<AngleTable> angles_;
  Loss loss_;
  Loss* selected_loss_ = &loss_;
  std::unique_ptr<PinnedMemory> result_;  // of read()
  int64_t result_bytes_ = 0;
  std::unique_ptr<Event> loss_event_, result_event_;
};

}  // namespace

std::unique_ptr<Backend> make_cuda_backend(Device& device, const ProductSettings& products,
                                           AttentionKernels attention) {
  CudaDevice& gpu = cuda_device(device);
  gpu.make_current();
  if (products.rounding == OperandRounding::kFp8 && gpu.capability() < 89) {
    throw UnavailableError("--products fp8 needs a GPU of compute capability 8.9 or more, and " + gpu.describe() +
                           " has less: use --products full.");
  }
  return std::make_unique<CudaBackend>(gpu, products, attention);
}

}  // namespace aliquot
