// Compares the layers of the models on a GPU with those on the host.
#include <algorithm>
#include <gtest/gtest.h>
#include <string>
#include <vector>

#include "kernels/system/error.h"
#include "tests/apps/models/backend_on_gpu.h"

namespace aliquot::test {
namespace {

INSTANTIATE_TEST_SUITE_P(Types, BackendOnGpu, kComputeTypes, type_name);

TEST_P(BackendOnGpu, Norms) {
  for (const bool centred : {true, false}) {
    // Rows of most widths are held in registers. The others have no packs of four elements, or too many.
    for (const int64_t width : {1, 37, 256, 768, 1030, 1280, 2048, 2052}) {
      SCOPED_TRACE(testing::Message() << (centred ? "layer" : "RMS") << " norm, width " << width);
      const int64_t rows = width > 1030 ? 9 : 71;
      Array x = random(rows * width, DType::kFloat32, 2), from = random(rows * width);
      Array weight = random(width, type()), bias = random(width, type());
      Array mean = zeros(rows), rstd = zeros(rows), to = zeros(rows * width, type()), dx = random(rows * width);
      Array d_weight = random(width, type()), d_bias = random(width, type());
      const auto forward = [&](Backend& loops, auto at, auto values) {
        loops.layer_norm_forward({at(x), values(weight), centred ? ConstValues(values(bias)) : ConstValues(),
                                  centred ? at(mean) : nullptr, at(rstd), values(to), rows, width, 1e-3f});
        for (const bool add : {false, true}) {
          loops.layer_norm_backward_weights({.x = at(x),
                                             .mean = centred ? at(mean) : nullptr,
                                             .rstd = at(rstd),
                                             .from = at(from),
                                             .weight = values(d_weight),
                                             .bias = centred ? values(d_bias) : Values(),
                                             .rows = rows,
                                             .width = width,
                                             .begin = 0,
                                             .end = width,
                                             .add = add});
          loops.layer_norm_backward(
              {at(x), values(weight), centred ? at(mean) : nullptr, at(rstd), at(from), at(dx), rows, width, add});
        }
      };
      forward(
          *host_, [](Array& a) { return a.host_as<float>(); }, [](Array& a) { return a.host(); });
      forward(
          *gpu_, [](Array& a) { return a.gpu_as<float>(); }, [](Array& a) { return a.gpu(); });
      EXPECT_TRUE(mean.alike());
      EXPECT_TRUE(rstd.alike(1e-5));
      EXPECT_TRUE(to.alike());
      // At width 1 the gradient of the input is zero except for rounding errors.
      if (width > 1) {
        EXPECT_TRUE(dx.alike(1e-5));
      }
      EXPECT_TRUE(d_weight.alike(std::max(1e-5, rounding_tolerance(type()))));
      EXPECT_TRUE(d_bias.alike());
    }
  }
}

TEST_P(BackendOnGpu, HeadNorms) {
  for (const int64_t width : {2, 33, 128}) {
    SCOPED_TRACE(width);
    const int64_t rows = 23, heads = 3, copied = 5, stride = heads * width + copied + 2;
    Array x = random(rows * stride, type(), 2), weight = random(width, type()), to = random(rows * stride, type());
    Array gradient = random(rows * stride, type()), rstd = zeros(rows * heads), d_weight = zeros(width);
    Array sum = random(width, type());
    const auto run = [&](Backend& loops, auto at, auto values) {
      loops.head_norms_forward(
          {values(x), values(weight), values(to), at(rstd), rows, heads, width, stride, copied, 1e-3f});
      loops.head_norms_backward_weight(
          {values(x), values(gradient), at(rstd), at(d_weight), rows, heads, width, stride, 0, width});
      loops.head_norms_backward({values(x), values(weight), values(gradient), at(rstd), rows, heads, width, stride});
      loops.sum_columns({values(sum), at(d_weight), 1, width, 0, width, true});
    };
    run(
        *host_, [](Array& a) { return a.host_as<float>(); }, [](Array& a) { return a.host(); });
    run(
        *gpu_, [](Array& a) { return a.gpu_as<float>(); }, [](Array& a) { return a.gpu(); });
    EXPECT_TRUE(rstd.alike(1e-5));
    EXPECT_TRUE(to.alike());
    EXPECT_TRUE(d_weight.alike(1e-5));
    EXPECT_TRUE(gradient.alike(std::max(1e-5, rounding_tolerance(type()))));
    EXPECT_TRUE(sum.alike(std::max(1e-5, rounding_tolerance(type()))));
  }
}

TEST_P(BackendOnGpu, ElementwiseLayers) {
  struct Case {
    int64_t count, offset, input_offset;
  };
  // Aligned arrays, arrays with 7 elements before the first pack of 16 bits, and arrays without common packs.
  for (const Case& c : {Case{4099, 0, 0}, Case{4099, 1, 1}, Case{515, 0, 4}, Case{515, 3, 0}, Case{5, 1, 1}}) {
    SCOPED_TRACE(testing::Message() << c.count << " elements from " << c.offset << " and " << c.input_offset << " on");
    const int64_t all = c.count + 8;  // the layers must not change the elements before and after their own
    Array x = random(all, type(), 6), y = random(all, type()), g = random(all, type());
    Array gate = random(all, type(), 6), up = random(all, type()), both = random(all, type());
    Array wide = random(all), narrow = random(all, type());
    const auto run = [&](Backend& loops, auto values) {
      const auto own = [&](Array& a) { return values(a).from(c.offset); };
      const auto input = [&](Array& a) { return values(a).from(c.input_offset); };
      loops.gelu_forward(own(y), input(x), c.count);
      loops.gelu_backward(own(g), input(x), c.count);
      loops.gated_forward(own(both), {input(gate), own(up), c.count});
      loops.gated_backward(own(both), {input(gate), own(up), c.count});
      loops.convert(own(narrow), input(wide), c.count);
    };
    run(*host_, [](Array& a) { return a.host(); });
    run(*gpu_, [](Array& a) { return a.gpu(); });
    for (Array* array : {&y, &g, &both, &gate, &up}) EXPECT_TRUE(array->alike());
    EXPECT_TRUE(narrow.alike(0));
  }
}

TEST_P(BackendOnGpu, RotaryPositions) {
  const ModelShape shape{.family = ModelFamily::kLlama, .width = 48, .heads = 4, .kv_heads = 2};
  const int64_t sequence = 19, batch = 2, stride = 100, half = shape.head_width() / 2;
  Array x = random(batch * sequence * stride, type()), cosines = zeros(sequence * half), sines = zeros(sequence * half);
  for (const bool back : {false, true}) {
    const auto run = [&](Backend& loops, auto at, auto values) {
      loops.rotary_angles(shape, sequence, at(cosines), at(sines));
      loops.rotate(
          {batch, sequence, shape.heads + shape.kv_heads, shape.head_width(), stride, at(cosines), at(sines), back},
          values(x));
    };
    run(
        *host_, [](Array& a) { return a.host_as<float>(); }, [](Array& a) { return a.host(); });
    run(
        *gpu_, [](Array& a) { return a.gpu_as<float>(); }, [](Array& a) { return a.gpu(); });
    EXPECT_TRUE(cosines.alike(0));
    EXPECT_TRUE(sines.alike(0));
    EXPECT_TRUE(x.alike());
  }
}

TEST_P(BackendOnGpu, EmbeddingsAndPositions) {
  const int64_t batch = 3, sequence = 22, width = 37, entries = 29, context = 40, rows = batch * sequence;
  const int64_t own_entries = 11, first_entry = 9, own_rows = 31, first_row = 25;  // of a rank of a tensor group
  const TokenBatch ids = tokens(rows, entries);
  Array table = random(entries * width, type()), positions = random(context * width, type());
  Array from = random(rows * width), looked_up = zeros(rows * width), placed = zeros(rows * width);
  Array own_looked_up = random(rows * width), own_placed = zeros(own_rows * width);
  for (const bool add : {false, true}) {
    Array d_table = random(entries * width, type()), d_positions = random(context * width, type());
    Array d_own_table = random(own_entries * width, type()), d_own_positions = random(context * width, type());
    const auto run = [&](Backend& loops, auto at, auto values) {
      const EmbeddingRows embedding{loops.stage_tokens(ids).tokens, rows, width, entries};
      loops.embedding_forward(embedding, values(table), at(looked_up));
      loops.embedding_backward(embedding, at(from), values(d_table), add);
      const Positions where{rows, sequence, width, context};
      loops.positions_forward(where, values(positions), at(looked_up), at(placed));
      loops.positions_backward(where, at(from), values(d_positions), add);
      const EmbeddingRows own{embedding.tokens, rows, width, own_entries, first_entry};
      loops.embedding_forward(own, values(table), at(own_looked_up));
      loops.embedding_backward(own, at(from), values(d_own_table), add);
      const Positions own_where{own_rows, sequence, width, context, first_row};
      loops.positions_forward(own_where, values(positions), at(from), at(own_placed));
      loops.positions_backward(own_where, at(from), values(d_own_positions), add);
    };
    run(
        *host_, [](Array& a) { return a.host_as<float>(); }, [](Array& a) { return a.host(); });
    run(
        *gpu_, [](Array& a) { return a.gpu_as<float>(); }, [](Array& a) { return a.gpu(); });
    EXPECT_TRUE(looked_up.alike(0));
    EXPECT_TRUE(placed.alike(0));
    EXPECT_TRUE(own_looked_up.alike(0));
    EXPECT_TRUE(own_placed.alike(0));
    EXPECT_TRUE(d_own_table.alike(4 * rounding_tolerance(type())));
    EXPECT_TRUE(d_own_positions.alike(2 * rounding_tolerance(type())));
    // The host rounds a 16-bit gradient after adding each row.
    EXPECT_TRUE(d_table.alike(4 * rounding_tolerance(type())));
    EXPECT_TRUE(d_positions.alike(2 * rounding_tolerance(type())));
  }
}

/// On GPUs without cuDNN, and in builds without it, the test is skipped. On simulated GPUs, cuDNN is simulated.
TEST_P(BackendOnGpu, AttentionWithCudnn) {
  if (type() == DType::kFloat32) GTEST_SKIP() << "cuDNN computes attention only in 16 bits";
  std::unique_ptr<Backend> cudnn;
  try {
    cudnn = make_cuda_backend(*device_, {}, AttentionKernels::kCudnn);
  } catch (const UnavailableError& error) {
    GTEST_SKIP() << error.what();
  }
  cudnn->compute_on(*stream_);
  for (const AttentionShape& shape : std::initializer_list<AttentionShape>{
           {2, 64, 2, 32, 1}, {2, 130, 4, 64, 2}, {1, 97, 2, 128, 2}, {2, 200, 2, 64, 1, 65}, {2, 2, 1, 8, 1}}) {
    SCOPED_TRACE(testing::Message() << shape.sequence << " tokens, " << shape.heads << " heads of " << shape.head_width
                                    << ", " << shape.kv_heads << " key/value heads, window " << shape.window);
    const int64_t rows = shape.batch * shape.sequence;
    Array qkv = random(rows * shape.stride(), type(), 2), to = zeros(rows * shape.width(), type());
    Array log_sums = zeros(rows * shape.heads), from = random(rows * shape.width());
    Array d_qkv = random(rows * shape.stride(), type());
    Array scratch = zeros(
        std::max(host_->attention_scratch_elements(shape, type()), cudnn->attention_scratch_elements(shape, type())));
    ASSERT_EQ(cudnn->attention_text().find("own"), std::string::npos) << cudnn->attention_text();
    host_->attention_forward({shape, qkv.host(), to.host(), log_sums.host_as<float>(), scratch.host_as<float>()});
    host_->attention_backward({shape, qkv.host(), to.host(), log_sums.host_as<float>(), from.host_as<float>(),
                               d_qkv.host(), scratch.host_as<float>()});
    std::vector<double> first;
    for (int run = 0; run < 2; ++run) {
      cudnn->attention_forward({shape, qkv.gpu(), to.gpu(), log_sums.gpu_as<float>(), scratch.gpu_as<float>()});
      cudnn->attention_backward({shape, qkv.gpu(), to.gpu(), log_sums.gpu_as<float>(), from.gpu_as<float>(),
                                 d_qkv.gpu(), scratch.gpu_as<float>()});
      EXPECT_TRUE(to.alike());
      EXPECT_TRUE(log_sums.alike(1e-5));
      EXPECT_TRUE(d_qkv.alike(2 * rounding_tolerance(type())));
      if (run == 0) first = d_qkv.on_gpu();
    }
    EXPECT_EQ(d_qkv.on_gpu(), first) << "backward is not deterministic";
  }
}

/// Rows from a later position are the rows of all positions, in any order of calls.
TEST_P(BackendOnGpu, RotaryAnglesFromALaterPosition) {
  const ModelShape plain{.family = ModelFamily::kLlama, .width = 48, .heads = 4, .kv_heads = 2, .context = 40};
  ModelShape dynamic = plain;
  dynamic.rope.scaling = RopeScaling::kDynamic;
  dynamic.rope.factor = 2;
  for (const ModelShape& shape : {plain, dynamic}) {
    const int64_t half = shape.head_width() / 2;
    const auto backend = make_cuda_backend(*device_);
    backend->compute_on(*stream_);
    for (const auto& [sequence, first] : {std::pair{7, 0}, std::pair{8, 7}, std::pair{300, 290}, std::pair{9, 8},
                                          std::pair{60, 3}, std::pair{301, 300}}) {
      Array cosines = zeros((sequence - first) * half), sines = zeros((sequence - first) * half);
      host_->rotary_angles(shape, sequence, cosines.host_as<float>(), sines.host_as<float>(), first);
      backend->rotary_angles(shape, sequence, cosines.gpu_as<float>(), sines.gpu_as<float>(), first);
      EXPECT_TRUE(cosines.alike(0)) << sequence << " " << first;
      EXPECT_TRUE(sines.alike(0)) << sequence << " " << first;
    }
  }
}

}  // namespace
}  // namespace aliquot::test
