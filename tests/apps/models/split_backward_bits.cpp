#include "tests/apps/models/split_backward_bits.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "tests/apps/models/split_backward_run.h"

namespace aliquot::test {
namespace {

/// The results of the backward of both micro-batches.
struct Results {
  std::vector<Bytes> stream_gradients;  // after each use of each micro-batch, in the order of the whole backward
  std::vector<Bytes> first, last;       // gradients of each use's unit after the first micro-batch, and at the end
};

/// Expects that the fp32 values are finite and not all 0, because otherwise equal bits prove nothing.
void expect_numbers(const Bytes& bytes) {
  std::vector<float> values(bytes.size() / sizeof(float));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  EXPECT_TRUE(std::ranges::all_of(values, [](float value) { return std::isfinite(value); }));
  EXPECT_TRUE(std::ranges::any_of(values, [](float value) { return value != 0; }));
}

enum class Order { kWhole, kPartsTogether, kPartsApart };

/// Runs the backward of both micro-batches. With kPartsApart, the weights parts of all uses run at the end.
Results run_backward(SplitBackwardRun& run, Order order) {
  Results results;
  results.first.resize(static_cast<size_t>(run.use_count()));
  const auto weights = [&](int m, int use) {
    run.run(UseKind::kBackwardWeights, m, use);
    if (m == 0) results.first[static_cast<size_t>(use)] = run.gradients(use);
  };
  for (int m = 0; m < SplitBackwardRun::kMicroBatches; ++m) {
    for (int use = run.use_count() - 1; use >= 0; --use) {
      const bool split = order != Order::kWhole && run.splits(use);
      run.run(split ? UseKind::kBackwardInput : UseKind::kBackward, m, use);
      results.stream_gradients.push_back(run.gradient_of_stream());
      if (!split && m == 0) results.first[static_cast<size_t>(use)] = run.gradients(use);
      if (split && order == Order::kPartsTogether) weights(m, use);
    }
  }
  for (int m = 0; order == Order::kPartsApart && m < SplitBackwardRun::kMicroBatches; ++m) {
    for (int use = 0; use < run.use_count(); ++use) {
      if (run.splits(use)) weights(m, use);
    }
  }
  for (int use = 0; use < run.use_count(); ++use) results.last.push_back(run.gradients(use));
  return results;
}

}  // namespace

void expect_equal_bits(Device& device, Stream& stream, Backend& backend, const ModelShape& shape, DType compute,
                       int64_t sequence) {
  for (const DType gradient_type : {DType::kFloat32, DType::kBFloat16}) {
    const bool is_narrow = gradient_type != DType::kFloat32;
    if (is_narrow && compute == DType::kFloat32) continue;
    // cuBLASLt has no products of fp16 operands with bf16 result.
    if (is_narrow && compute == DType::kFloat16 && device.kind() == DeviceKind::kCuda) continue;
    for (const GradientMode mode : {GradientMode::kAssign, GradientMode::kAdd}) {
      for (const bool recomputes : {false, true}) {
        SCOPED_TRACE(testing::Message() << name(compute) << ", gradients in " << name(gradient_type)
                                        << (mode == GradientMode::kAdd ? ", added" : ", assigned")
                                        << (recomputes ? ", recomputed" : ""));
        const ModelOptions options{.batch = 2,
                                   .sequence = sequence,
                                   .gradients = mode,
                                   .table_gradients = mode,
                                   .compute = compute,
                                   .gradient_type = gradient_type};
        const auto results = [&](Order order) {
          SplitBackwardRun run(device, stream, backend, shape, options, recomputes);
          for (int m = 0; m < SplitBackwardRun::kMicroBatches; ++m) run.forward(m);
          return run_backward(run, order);
        };
        const Results whole = results(Order::kWhole);
        expect_numbers(whole.stream_gradients.back());
        for (const Order order : {Order::kPartsTogether, Order::kPartsApart}) {
          const Results split = results(order);
          EXPECT_TRUE(split.stream_gradients == whole.stream_gradients) << "gradients of inputs differ";
          EXPECT_TRUE(split.first == whole.first) << "gradients of the first micro-batch differ";
          EXPECT_TRUE(split.last == whole.last) << "gradients differ";
        }
      }
    }
  }
}

}  // namespace aliquot::test
