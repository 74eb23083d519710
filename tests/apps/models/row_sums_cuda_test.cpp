// Compares sums over rows on a GPU with those on the host. Scratch memory must not change a bit.
#include <algorithm>
#include <gtest/gtest.h>
#include <vector>

#include "apps/models/cuda/layers_cuda.h"
#include "kernels/layers/sum_divisions.h"
#include "tests/support/arrays_on_gpu.h"

namespace aliquot::test {
namespace {

class RowSumsOnGpu : public ArraysOnGpu {
 protected:
  /// Calls sum(scratch), which returns results of a GPU, with no, too little and enough scratch. Expects that all
  /// results are equal, and that only the last call writes to the scratch, and not more than the required elements.
  template <class Sum>
  void expect_same_bits(int64_t required, const Sum& sum) {
    const std::vector<float> initial(static_cast<size_t>(required + 64), 3.5f);
    const auto expected = sum(LayerScratch{});
    for (const bool enough : {false, true}) {
      if (required == 0) continue;
      SCOPED_TRACE(enough ? "enough scratch" : "too little scratch");
      Array scratch = array(initial);
      EXPECT_EQ(sum(LayerScratch{scratch.gpu_as<float>(), enough ? required : required - 1}), expected);
      const auto written = scratch.on_gpu();
      const auto changed = [](double value) { return value != 3.5; };
      EXPECT_EQ(std::ranges::count_if(written, changed), enough ? required : 0);
      EXPECT_TRUE(std::none_of(written.begin() + required, written.end(), changed));
    }
  }

  ThreadPool pool_{1};
};

INSTANTIATE_TEST_SUITE_P(Types, RowSumsOnGpu, kComputeTypes, type_name);

TEST_P(RowSumsOnGpu, Columns) {
  struct Case {
    int64_t rows, columns, stride, offset = 0;
  };
  // Rows of 16-byte packs, rows without packs, one range of rows, ranges of 64, 80 and 512 rows, and empty groups.
  for (const Case& c :
       {Case{0, 5, 5}, Case{1, 1, 1}, Case{1, 37, 40}, Case{64, 128, 128}, Case{65, 24, 56}, Case{65, 130, 131},
        Case{300, 136, 136, 1}, Case{1500, 40, 48, 8}, Case{9000, 16, 16}, Case{70000, 8, 8}}) {
    SCOPED_TRACE(testing::Message() << c.rows << " rows, " << c.columns << " columns, stride " << c.stride);
    Array from = random(c.rows * c.stride + c.offset, type());
    for (const DType to_type : {DType::kFloat32, type()}) {
      for (const bool add : {false, true}) {
        const std::vector<float> initial = random_.floats(c.columns);
        const auto sums = [&](Values to, ConstValues of, int64_t columns) {
          return ColumnSums{to, of.from(c.offset), c.rows, c.stride, 0, columns, add};
        };
        const auto sum = [&](int64_t columns, const LayerScratch& scratch) {
          Array to = array(initial, to_type);
          ColumnSums on_gpu = sums(to.gpu(), from.gpu(), columns);
          on_gpu.scratch = scratch;
          cuda::sum_columns(*stream_, on_gpu);
          sum_columns(pool_, sums(to.host(), from.host(), columns));
          EXPECT_TRUE(to.alike(std::max(1e-5, rounding_tolerance(to_type))));
          return to.on_gpu();
        };
        expect_same_bits(column_sums_scratch_elements(c.rows, c.columns),
                         [&](const LayerScratch& scratch) { return sum(c.columns, scratch); });
        // The ranks of a tensor group divide columns.
        const int64_t some = (c.columns + 1) / 2;
        const auto all = sum(c.columns, {}), first = sum(some, {});
        EXPECT_TRUE(std::equal(first.begin(), first.begin() + some, all.begin()));
      }
    }
  }
}

TEST_P(RowSumsOnGpu, NormWeights) {
  struct Case {
    int64_t rows, width, offset = 0;
  };
  for (const Case& c : {Case{1, 37}, Case{64, 128}, Case{200, 37}, Case{200, 68}, Case{200, 64, 1}, Case{1100, 12}}) {
    for (const bool centred : {true, false}) {
      SCOPED_TRACE(testing::Message() << c.rows << " rows of " << c.width << (centred ? ", layer norm" : ", RMS norm"));
      Array x = random(c.rows * c.width + c.offset), from = random(c.rows * c.width + c.offset);
      Array mean = random(c.rows), rstd = random(c.rows);
      for (const bool add : {false, true}) {
        const std::vector<float> initial = random_.floats(2 * c.width);
        const auto sum = [&](const LayerScratch& scratch) {
          Array to = array(initial, type());
          const auto norm = [&](auto at, Values weight) {
            return LayerNormWeightColumns{.x = at(x) + c.offset,
                                          .mean = centred ? at(mean) : nullptr,
                                          .rstd = at(rstd),
                                          .from = at(from) + c.offset,
                                          .weight = weight,
                                          .bias = centred ? weight.from(c.width) : Values(),
                                          .rows = c.rows,
                                          .width = c.width,
                                          .begin = 0,
                                          .end = c.width,
                                          .add = add,
                                          .scratch = scratch};
          };
          cuda::layer_norm_backward_weights(*stream_, norm([](Array& a) { return a.gpu_as<float>(); }, to.gpu()));
          layer_norm_backward_weights(pool_, norm([](Array& a) { return a.host_as<float>(); }, to.host()));
          EXPECT_TRUE(to.alike(std::max(1e-5, rounding_tolerance(type()))));
          return to.on_gpu();
        };
        expect_same_bits(column_sums_scratch_elements(c.rows, (centred ? 2 : 1) * c.width), sum);
      }
    }
  }
}

TEST_P(RowSumsOnGpu, HeadNormWeights) {
  struct Case {
    int64_t rows, heads, width, stride;
  };
  for (const Case& c : {Case{1, 1, 8, 8}, Case{23, 3, 33, 104}, Case{23, 3, 64, 200}, Case{100, 2, 128, 264}}) {
    SCOPED_TRACE(testing::Message() << c.rows << " rows, " << c.heads << " heads of " << c.width);
    Array x = random(c.rows * c.stride, type()), gradient = random(c.rows * c.stride, type());
    for (const int64_t more : {0, 2}) {  // elements of `rstd` of other heads
      Array rstd = random(c.rows * (c.heads + more));
      const auto sum = [&](const LayerScratch& scratch) {
        Array to = random(c.width);
        const auto norm = [&](auto values, auto at) {
          HeadNormsWeight a{values(x), values(gradient), at(rstd), at(to), c.rows, c.heads, c.width, c.stride};
          a.end = c.width;
          a.rstd_stride = more == 0 ? 0 : c.heads + more;
          a.scratch = scratch;
          return a;
        };
        cuda::head_norms_backward_weight(
            *stream_, norm([](Array& a) { return a.gpu(); }, [](Array& a) { return a.gpu_as<float>(); }));
        head_norms_backward_weight(
            pool_, norm([](Array& a) { return a.host(); }, [](Array& a) { return a.host_as<float>(); }));
        EXPECT_TRUE(to.alike(1e-5));
        return to.on_gpu();
      };
      expect_same_bits(column_sums_scratch_elements(c.rows * c.heads, c.width), sum);
    }
  }
}

}  // namespace
}  // namespace aliquot::test
