#include "tests/apps/models/split_backward_run.h"

#include <algorithm>
#include <cstring>

namespace aliquot::test {
namespace {

constexpr int64_t kRedZoneBytes = 64;  // between regions, so that writes beyond a region are found
constexpr std::byte kNanByte{0xFF};
// The scratch of a GPU ends with a large workspace of matrix products, which need not be filled.
constexpr int64_t kScratchToFillBytes = 1 << 20;

std::string_view text(UseKind kind) {
  switch (kind) {
    case UseKind::kForward: return "forward";
    case UseKind::kBackward: return "backward";
    case UseKind::kEvaluate: return "evaluate";
    case UseKind::kBackwardInput: return "input part";
    case UseKind::kBackwardWeights: return "weights part";
  }
  return "";
}

bool is_backward(UseKind kind) { return kind == UseKind::kBackward || kind == UseKind::kBackwardInput; }

std::vector<int32_t> random_ids(int64_t count, int64_t vocabulary, RandomValues& random) {
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < count; ++i)
    ids.push_back(static_cast<int32_t>(random.bits() % static_cast<uint64_t>(vocabulary)));
  return ids;
}

}  // namespace

SplitBackwardRun::SplitBackwardRun(Device& device, Stream& stream, Backend& backend, const ModelShape& shape,
                                   const ModelOptions& options, bool recomputes)
    : device_(device),
      stream_(stream),
      model_(make_model(shape, options, backend)),
      spec_(model_->activations()),
      recomputes_(recomputes) {
  const int64_t token_count = options.batch * options.sequence;
  RandomValues random(3);
  for (int m = 0; m < kMicroBatches; ++m) {
    tokens_[m] = random_ids(token_count, shape.vocabulary, random);
    targets_[m] = random_ids(token_count, shape.vocabulary, random);
  }
  const float loss_scale = options.compute == DType::kFloat16 ? 0x1p12f : 1.0f;
  model_->set_loss_factor(loss_scale / static_cast<float>(token_count));
  lay_out();
  block_ = device.allocate(block_bytes_, Category::kStaging, "test");
  fill_with_nan({0, block_bytes_});
  fill_tensors(options);
}

SplitBackwardRun::Region SplitBackwardRun::reserve(int64_t size_bytes) {
  const Region region{block_bytes_, size_bytes};
  if (size_bytes > 0) block_bytes_ += (size_bytes + 2 * kRedZoneBytes - 1) / kRedZoneBytes * kRedZoneBytes;
  return region;
}

void SplitBackwardRun::lay_out() {
  for (const ModelUnit& unit : model_->units()) {
    UnitRegions& regions = units_.emplace_back();
    regions.gradients.offset = block_bytes_;
    for (const ModelTensor& tensor : unit.tensors)
      regions.tensor_gradients.push_back(reserve(tensor.element_count() * element_bytes(tensor.gradient->type)));
    regions.gradients.size_bytes = block_bytes_ - regions.gradients.offset;
    for (const ModelTensor& tensor : unit.tensors)
      regions.values.push_back(reserve(tensor.element_count() * element_bytes(tensor.parameter->type)));
  }
  int64_t scratch_bytes = 0;
  for (const UseActivations& use : spec_.uses) {
    for (auto& uses : uses_)
      uses.push_back({reserve(use.output_bytes), reserve(use.kept_bytes), reserve(use.weight_inputs_bytes)});
    scratch_bytes = std::max(scratch_bytes, use.scratch_bytes);
  }
  backward_ = reserve(spec_.backward_bytes);
  checked_ = {0, block_bytes_};
  scratch_ = reserve(scratch_bytes);
}

/// Values are so large that gradients are large compared with rounding errors. Gradients begin with 0, or with NaN if
/// the model must assign them.
void SplitBackwardRun::fill_tensors(const ModelOptions& options) {
  RandomValues random(7);
  for (size_t u = 0; u < units_.size(); ++u) {
    const ModelUnit& unit = model_->units()[u];
    for (size_t t = 0; t < unit.tensors.size(); ++t) {
      const ModelTensor& tensor = unit.tensors[t];
      std::vector<float> values = random.floats(tensor.element_count(), 0.3f);
      for (float& value : values) value += tensor.initial.kind == Initializer::Kind::kOne ? 1.0f : 0.0f;
      const auto size_bytes = static_cast<int64_t>(values.size() * sizeof(float));
      const Buffer uploaded = device_.allocate(size_bytes, Category::kStaging, "test");
      device_.kernels().copy(stream_, uploaded.data(), values.data(), size_bytes);
      device_.kernels().cast(stream_, address(units_[u].values[t]), tensor.parameter->type, uploaded.data(),
                             DType::kFloat32, tensor.element_count());
      if (options.gradients == GradientMode::kAdd) {
        device_.kernels().fill(stream_, address(units_[u].tensor_gradients[t]), tensor.gradient->type, 0.0f,
                               tensor.element_count());
      }
      stream_.synchronize();
    }
  }
}

void SplitBackwardRun::fill_with_nan(const Region& region) {
  if (region.size_bytes == 0) return;
  const Bytes nan(static_cast<size_t>(region.size_bytes), kNanByte);
  device_.kernels().copy(stream_, address(region), nan.data(), region.size_bytes);
  stream_.synchronize();
}

Bytes SplitBackwardRun::fetch(const Region& region) {
  Bytes bytes(static_cast<size_t>(region.size_bytes));
  if (bytes.empty()) return bytes;
  device_.kernels().copy(stream_, bytes.data(), address(region), region.size_bytes);
  stream_.synchronize();
  return bytes;
}

UseMemory SplitBackwardRun::memory_of(UseKind kind, int micro_batch, int use) const {
  const auto& uses = uses_[micro_batch];
  const UseRegions& own = at(uses, use);
  const bool weights = kind == UseKind::kBackwardWeights, input = kind == UseKind::kBackwardInput;
  const bool reads_input = kind == UseKind::kForward || at(spec_.uses, use).input_in_backward;
  const bool has_output = kind == UseKind::kForward || (!weights && at(spec_.uses, use).output_in_backward);
  return {.use = use,
          .input = use > 0 && reads_input ? address(at(uses, use - 1).output) : nullptr,
          .output = has_output ? address(own.output) : nullptr,
          .kept = address(own.kept),
          .scratch = address(scratch_),
          .backward = is_backward(kind) ? address(backward_) : nullptr,
          .weight_inputs = weights || input ? address(own.weight_inputs) : nullptr};
}

std::vector<SplitBackwardRun::Region> SplitBackwardRun::writable(UseKind kind, int micro_batch, int use) const {
  const UseRegions& own = at(uses_[micro_batch], use);
  const Region& gradients = at(units_, at(model_->uses(), use)).gradients;
  switch (kind) {
    case UseKind::kForward:
    case UseKind::kEvaluate: return {own.kept, own.output};
    case UseKind::kBackward: return {own.kept, backward_, gradients};
    case UseKind::kBackwardInput: return {own.kept, backward_, own.weight_inputs};
    case UseKind::kBackwardWeights: return {gradients};
  }
  return {};
}

void SplitBackwardRun::point(UseKind kind, int use) {
  std::byte* guard = guard_.address(0);
  const bool values = kind != UseKind::kBackwardWeights;
  const bool gradients = kind == UseKind::kBackward || kind == UseKind::kBackwardWeights;
  for (size_t u = 0; u < units_.size(); ++u) {
    const ModelUnit& unit = model_->units()[u];
    const bool open = static_cast<int>(u) == at(model_->uses(), use);
    for (size_t t = 0; t < unit.tensors.size(); ++t) {
      unit.tensors[t].parameter->data = open && values ? address(units_[u].values[t]) : guard;
      unit.tensors[t].gradient->data = open && gradients ? address(units_[u].tensor_gradients[t]) : guard;
    }
  }
}

void SplitBackwardRun::recompute(const UseMemory& memory, const Region& kept) {
  fill_with_nan(kept);
  model_->set_memory(memory);
  model_->recompute(memory.use);
}

void SplitBackwardRun::call(UseKind kind, int use) {
  switch (kind) {
    case UseKind::kForward:
    case UseKind::kEvaluate: return model_->forward(use);
    case UseKind::kBackward: return model_->backward(use);
    case UseKind::kBackwardInput: return model_->backward_input(use);
    case UseKind::kBackwardWeights: return model_->backward_weights(use);
  }
}

void SplitBackwardRun::run(UseKind kind, int micro_batch, int use) {
  const UseRegions& own = at(uses_[micro_batch], use);
  const UseMemory memory = memory_of(kind, micro_batch, use);
  // The weights part must not read the batch, so it runs with the tokens of another use.
  if (kind != UseKind::kBackwardWeights) model_->set_batch({tokens_[micro_batch], targets_[micro_batch]});
  point(kind, use);
  if (recomputes_ && is_backward(kind) && at(spec_.uses, use).recomputable) recompute(memory, own.kept);
  fill_with_nan({scratch_.offset, std::min(scratch_.size_bytes, kScratchToFillBytes)});
  if (kind == UseKind::kBackwardInput) fill_with_nan(own.weight_inputs);
  const Bytes before = fetch(checked_);
  model_->set_memory(memory);
  call(kind, use);
  stream_.synchronize();
  const std::string what = std::string(text(kind)) + " of use " + std::to_string(use);
  expect_only(writable(kind, micro_batch, use), before, what);
  if (kind == UseKind::kBackwardInput) expect_full(own.weight_inputs);
}

void SplitBackwardRun::expect_only(const std::vector<Region>& written, const Bytes& before, const std::string& what) {
  Bytes now = fetch(checked_);
  for (const Region& region : written)
    std::copy_n(before.begin() + region.offset, region.size_bytes, now.begin() + region.offset);
  const auto differs = std::ranges::mismatch(now, before).in1;
  EXPECT_TRUE(differs == now.end()) << what << " changed byte " << differs - now.begin() << " of " << now.size();
}

/// Expects that the input part has written the whole buffer, except for padding of its arrays to 64 bytes.
void SplitBackwardRun::expect_full(const Region& weight_inputs) {
  const Bytes bytes = fetch(weight_inputs);
  for (size_t line = 0; line < bytes.size(); line += 64) {
    const bool unused = std::all_of(bytes.begin() + static_cast<std::ptrdiff_t>(line),
                                    bytes.begin() + static_cast<std::ptrdiff_t>(std::min(line + 64, bytes.size())),
                                    [](std::byte byte) { return byte == kNanByte; });
    EXPECT_FALSE(unused) << "weight_inputs has unused bytes at " << line;
    if (unused) return;
  }
}

}  // namespace aliquot::test
