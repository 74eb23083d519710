// Compares linear layers on a GPU with those on the host.
#include <algorithm>
#include <gtest/gtest.h>
#include <vector>

#include "tests/apps/models/backend_on_gpu.h"

namespace aliquot::test {
namespace {

class LinearOnGpu : public BackendOnGpu {
 protected:
  void check_linear(int64_t outputs, bool outputs_first) {
    const int64_t rows = 33, inputs = 40, stride = outputs_first ? 136 : 0;
    SCOPED_TRACE(testing::Message() << outputs << " outputs"
                                    << (outputs_first ? ", first, in wider rows" : ", after the inputs"));
    const int64_t row = stride == 0 ? outputs : stride;
    Array x = random(rows * inputs, type()), weight = random(inputs * outputs, type(), 0.3f),
          bias = random(outputs, type());
    Array residual = random(rows * outputs), to = zeros(rows * row), from = random(rows * row, type());
    Array d_x = random(rows * inputs), d_weight = random(inputs * outputs), d_bias = random(outputs);
    Array scratch = product_scratch();
    const auto run = [&](Backend& loops, auto at, auto values) {
      const Linear linear{.weight = values(weight),
                          .bias = values(bias),
                          .rows = rows,
                          .inputs = inputs,
                          .outputs = outputs,
                          .outputs_first = outputs_first,
                          .scratch = at(scratch),
                          .output_stride = stride};
      loops.linear_forward(linear, values(x), outputs_first ? nullptr : at(residual), values(to));
      for (const bool add : {false, true}) {
        loops.linear_backward_input(linear, values(from), values(d_x), add);
        loops.linear_backward_weights(linear, values(x), values(from), {values(d_weight), values(d_bias), add});
      }
    };
    run(
        *host_, [](Array& a) { return a.host_as<float>(); }, [](Array& a) { return a.host(); });
    run(
        *gpu_, [](Array& a) { return a.gpu_as<float>(); }, [](Array& a) { return a.gpu(); });
    EXPECT_TRUE(to.alike());
    EXPECT_TRUE(d_x.alike());
    EXPECT_TRUE(d_weight.alike());
    EXPECT_TRUE(d_bias.alike());
  }
};

INSTANTIATE_TEST_SUITE_P(Types, LinearOnGpu, kComputeTypes, type_name);

TEST_P(LinearOnGpu, MultipliesInBothLayouts) {
  // The simulated cuBLASLt has no epilogues for 56 outputs.
  for (const int64_t outputs : {24, 56, 104}) {
    check_linear(outputs, false);
    check_linear(outputs, true);
  }
}

/// Checks both directions of a linear layer with a GELU, also with rows that are not aligned to 16 bytes.
TEST_P(LinearOnGpu, AppliesTheGelu) {
  for (const int64_t hidden : {20, 24, 56, 104}) {
    SCOPED_TRACE(hidden);
    const int64_t rows = 33, width = 40;
    Array x = random(rows * width, type()), up = random(width * hidden, type(), 0.3f), bias = random(hidden, type());
    Array before = zeros(rows * hidden, type()), to = zeros(rows * hidden, type());
    Array down = random(hidden * width, type(), 0.3f), from = random(rows * width, type());
    Array d_before = zeros(rows * hidden, type()), scratch = product_scratch();
    const auto run = [&](Backend& loops, auto at, auto values, bool needs_gelu) {
      const Linear first{.weight = values(up),
                         .bias = values(bias),
                         .rows = rows,
                         .inputs = width,
                         .outputs = hidden,
                         .scratch = at(scratch)};
      const Linear second{.weight = values(down),
                          .bias = nullptr,
                          .rows = rows,
                          .inputs = hidden,
                          .outputs = width,
                          .scratch = at(scratch)};
      loops.linear_gelu_forward(first, values(x), values(before), values(to), needs_gelu);
      loops.linear_gelu_backward_input(second, values(from), values(before), values(d_before));
    };
    const auto host_at = [](Array& a) { return a.host_as<float>(); };
    const auto host_values = [](Array& a) { return a.host(); };
    const auto gpu_at = [](Array& a) { return a.gpu_as<float>(); };
    const auto gpu_values = [](Array& a) { return a.gpu(); };
    run(*host_, host_at, host_values, true);
    run(*gpu_, gpu_at, gpu_values, true);
    EXPECT_TRUE(before.alike());
    // The GPU may apply the GELU before it rounds.
    EXPECT_TRUE(to.alike(std::max(1e-5, 2 * rounding_tolerance(type()))));
    EXPECT_TRUE(d_before.alike(std::max(1e-5, 2 * rounding_tolerance(type()))));
    const std::vector<double> with_gelu = before.on_gpu();
    run(*gpu_, gpu_at, gpu_values, false);
    EXPECT_EQ(before.on_gpu(), with_gelu);
  }
}

/// The matrix product may add the bias. The cached cuBLASLt descriptor of a shape must not keep the bias of an earlier
/// call.
TEST_P(LinearOnGpu, UsesTheBiasOfEachCall) {
  for (const int64_t outputs : {24, 64}) {
    SCOPED_TRACE(outputs);
    const int64_t rows = 33, inputs = 40;
    Array x = random(rows * inputs, type()), weight = random(inputs * outputs, type(), 0.3f);
    Array scratch = product_scratch();
    for (int call = 0; call < 2; ++call) {
      Array bias = random(outputs, type()), to = random(rows * outputs, type());
      const auto run = [&](Backend& loops, auto at, auto values) {
        const Linear linear{.weight = values(weight),
                            .bias = values(bias),
                            .rows = rows,
                            .inputs = inputs,
                            .outputs = outputs,
                            .scratch = at(scratch)};
        loops.linear_forward(linear, values(x), nullptr, values(to));
      };
      run(
          *host_, [](Array& a) { return a.host_as<float>(); }, [](Array& a) { return a.host(); });
      run(
          *gpu_, [](Array& a) { return a.gpu_as<float>(); }, [](Array& a) { return a.gpu(); });
      EXPECT_TRUE(to.alike()) << "call " << call;
    }
  }
}

}  // namespace
}  // namespace aliquot::test
