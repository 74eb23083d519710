// Compares attention on a GPU with attention on the host.
#include <algorithm>
#include <cmath>
#include <gtest/gtest.h>
#include <limits>
#include <vector>

#include "tests/apps/models/backend_on_gpu.h"

namespace aliquot::test {
namespace {

struct Case {
  int64_t sequence, heads, kv_heads, head_width, window = 0;
};

class AttentionOnGpu : public BackendOnGpu {
 protected:
  /// Compares forward and backward. The arrays begin `shift` elements after aligned addresses. If `twice`, also
  /// compares the bits of two runs.
  void compare(const Case& c, int64_t shift = 0, bool twice = false) {
    SCOPED_TRACE(testing::Message() << c.sequence << " tokens, " << c.heads << " heads of " << c.head_width << ", "
                                    << c.kv_heads << " key/value heads, window " << c.window << ", shift " << shift);
    const AttentionShape shape{2, c.sequence, c.heads, c.head_width, c.kv_heads, c.window};
    const int64_t rows = shape.batch * shape.sequence;
    Array qkv = random(rows * shape.stride() + shift, type(), 2), to = zeros(rows * shape.width() + shift, type());
    Array log_sums = zeros(rows * shape.heads), from = random(rows * shape.width() + shift);
    Array d_qkv = random(rows * shape.stride() + shift, type());
    Array scratch = zeros(
        std::max(host_->attention_scratch_elements(shape, type()), gpu_->attention_scratch_elements(shape, type())));
    const auto run = [&](Backend& loops, float* gradient, auto at, auto values) {
      const auto shifted = [&](Array& array) { return values(array).from(shift); };
      loops.attention_forward({shape, shifted(qkv), shifted(to), at(log_sums), at(scratch)});
      loops.attention_backward(
          {shape, shifted(qkv), shifted(to), at(log_sums), gradient + shift, shifted(d_qkv), at(scratch)});
    };
    const auto run_on_gpu = [&](Array& gradient) {
      run(
          *gpu_, gradient.gpu_as<float>(), [](Array& a) { return a.gpu_as<float>(); },
          [](Array& a) { return a.gpu(); });
    };
    const std::vector<double> gradients = from.on_host();
    Array from_again(*device_, *stream_, {gradients.begin(), gradients.end()});  // a GPU overwrites the gradient
    run(
        *host_, from.host_as<float>(), [](Array& a) { return a.host_as<float>(); }, [](Array& a) { return a.host(); });
    run_on_gpu(from);
    // For tensor cores, probabilities and gradients of scores are rounded to 16 bits.
    EXPECT_TRUE(to.alike());
    EXPECT_TRUE(log_sums.alike(1e-5));
    EXPECT_TRUE(d_qkv.alike(type() == DType::kFloat32 ? 1e-5 : 2 * rounding_tolerance(type())));
    if (!twice) return;
    const std::vector<double> first[] = {to.on_gpu(), log_sums.on_gpu(), d_qkv.on_gpu()};
    run_on_gpu(from_again);
    const std::vector<double> second[] = {to.on_gpu(), log_sums.on_gpu(), d_qkv.on_gpu()};
    EXPECT_TRUE(std::ranges::equal(first, second)) << "the bits of two runs differ";
  }
};

INSTANTIATE_TEST_SUITE_P(Types, AttentionOnGpu, kComputeTypes, type_name);

TEST_P(AttentionOnGpu, Shapes) {
  for (const Case& c : {Case{1, 1, 1, 8}, Case{17, 2, 2, 20}, Case{64, 2, 1, 32}, Case{65, 4, 2, 64},
                        Case{130, 3, 1, 80}, Case{97, 2, 2, 128}, Case{40, 2, 1, 136}, Case{33, 1, 1, 33},
                        Case{70, 2, 1, 32, 1}, Case{200, 2, 1, 20, 3}, Case{200, 1, 1, 96, 63}, Case{200, 2, 1, 64, 65},
                        Case{150, 2, 1, 33, 100}, Case{70, 1, 1, 136, 40}, Case{70, 2, 2, 64, 300}}) {
    compare(c, 0, true);
  }
}

/// The types that use tensor cores.
class AttentionOnTensorCores : public AttentionOnGpu {};
INSTANTIATE_TEST_SUITE_P(Types, AttentionOnTensorCores, testing::Values(DType::kBFloat16, DType::kFloat16), type_name);

/// Head widths of every compiled tile, full or not, and sequences around the sizes of tiles.
TEST_P(AttentionOnTensorCores, SequencesAroundTiles) {
  for (const int64_t head_width : {8, 32, 40, 64, 80, 96, 128}) {
    for (const int64_t sequence : {1, 63, 64, 65, 127, 128, 129, 200}) compare({sequence, 2, 1, head_width});
  }
}

/// Windows smaller and larger than tiles, which begin and end within tiles and at their bounds.
TEST_P(AttentionOnTensorCores, WindowsAroundTiles) {
  for (const int64_t head_width : {32, 64, 96, 128}) {
    for (const int64_t window : {1, 2, 31, 32, 33, 34, 64, 66, 100, 127, 128, 129}) {
      compare({270, 1, 1, head_width, window});
    }
  }
}

/// Rows that do not begin at multiples of 16 bytes.
TEST_P(AttentionOnTensorCores, UnalignedRows) {
  for (const int64_t head_width : {32, 40, 64, 96, 128}) {
    for (const int64_t shift : {1, 4}) compare({150, 2, 1, head_width, 70}, shift);
  }
}

TEST_P(AttentionOnGpu, WithCachedKeys) {
  struct CachedCase {
    int64_t first, rows, heads, kv_heads, head_width, window = 0;
  };
  for (const CachedCase& c :
       {CachedCase{0, 5, 2, 2, 8}, CachedCase{70, 1, 4, 2, 64}, CachedCase{33, 20, 3, 1, 33},
        CachedCase{100, 70, 2, 1, 32, 9}, CachedCase{64, 1, 1, 1, 136, 3}, CachedCase{150, 3, 2, 1, 20, 300}}) {
    SCOPED_TRACE(testing::Message() << c.rows << " rows after " << c.first << ", " << c.heads << " heads of "
                                    << c.head_width << ", window " << c.window);
    const AttentionShape shape{1, c.rows, c.heads, c.head_width, c.kv_heads, c.window};
    AttentionShape longest = shape;
    longest.sequence += c.first;
    Array qkv = random(c.rows * shape.stride(), type(), 2), to = zeros(c.rows * shape.width(), type());
    Array cached = random(longest.sequence * 2 * shape.kv_width(), type(), 2), log_sums = zeros(c.rows * c.heads);
    Array scratch = zeros(host_->attention_scratch_elements(longest, type()));
    const auto run = [&](Backend& loops, auto at, auto values) {
      AttentionForward a{shape, values(qkv), values(to), at(log_sums), at(scratch)};
      a.cached = {values(cached), c.first};
      loops.attention_forward(a);
    };
    run(
        *host_, [](Array& a) { return a.host_as<float>(); }, [](Array& a) { return a.host(); });
    run(
        *gpu_, [](Array& a) { return a.gpu_as<float>(); }, [](Array& a) { return a.gpu(); });
    EXPECT_TRUE(to.alike());
    EXPECT_TRUE(log_sums.alike(1e-5));
  }
}

// Keys before the window are NaN. A product with probability 0 would be NaN.
TEST_P(AttentionOnGpu, SkipsKeysOutsideTheWindow) {
  for (const int64_t window : {int64_t{1}, int64_t{60}, int64_t{65}}) {
    const AttentionShape shape{1, 200, 2, 16, 1, window};
    std::vector<float> values = random_.floats(shape.sequence * shape.stride());
    std::fill(values.begin(), values.begin() + 64 * shape.stride(), std::numeric_limits<float>::quiet_NaN());
    Array qkv(*device_, *stream_, values, type()), to = zeros(shape.sequence * shape.width(), type());
    Array log_sums = zeros(shape.sequence * shape.heads), from = random(shape.sequence * shape.width());
    Array d_qkv = zeros(shape.sequence * shape.stride(), type());
    Array scratch = zeros(gpu_->attention_scratch_elements(shape, type()));
    gpu_->attention_forward({shape, qkv.gpu(), to.gpu(), log_sums.gpu_as<float>(), scratch.gpu_as<float>()});
    gpu_->attention_backward({shape, qkv.gpu(), to.gpu(), log_sums.gpu_as<float>(), from.gpu_as<float>(), d_qkv.gpu(),
                              scratch.gpu_as<float>()});
    // The tile of queries from 128 on attends to keys from 128 - 64 on.
    for (Array* array : {&to, &d_qkv}) {
      const std::vector<double> found = array->on_gpu();
      const auto first = found.begin() + 128 * (std::ssize(found) / shape.sequence);
      EXPECT_TRUE(std::all_of(first, found.end(), [](double value) { return std::isfinite(value); })) << window;
    }
  }
}

}  // namespace
}  // namespace aliquot::test
