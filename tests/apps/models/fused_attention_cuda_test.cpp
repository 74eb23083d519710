// Compares attention of a library on a GPU with that of the host. cuDNN is simulated, so the tests check the places of
// all operands, the choice of kernels and the scratch memory, but not cuDNN itself.
#include "apps/models/cuda/fused_attention_cuda.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <gtest/gtest.h>
#include <string>

#include "apps/models/cuda/backend_cuda.h"
#include "apps/models/cuda/cudnn_library.h"
#include "apps/models/cuda/gpu_scratch.h"
#include "kernels/device/work_graph.h"
#include "kernels/system/error.h"
#include "tests/support/mirrored_array.h"
#include "tests/support/random_values.h"
#include "tests/support/simulated/simulated_cudnn.h"

namespace aliquot::test {
namespace {

using Array = MirroredArray;

/// The arrays of one attention layer, on the host and on the GPU.
struct Layer {
  AttentionShape shape;
  Array qkv, to, log_sums, from, d_qkv, scratch;

  Layer(Device& device, Stream& stream, const AttentionShape& of, DType type)
      : shape(of),
        qkv(device, stream, random(of.batch * of.sequence * of.stride(), 2), type),
        to(device, stream, random(of.batch * of.sequence * of.width(), 1), type),
        log_sums(device, stream, random(of.batch * of.sequence * of.heads, 1)),
        from(device, stream, random(of.batch * of.sequence * of.width(), 1)),
        d_qkv(device, stream, random(of.batch * of.sequence * of.stride(), 1), type),
        scratch(device, stream, random(scratch_elements(of, type), 1)) {}

  void run_on_host(Backend& host) {
    host.attention_forward({shape, qkv.host(), to.host(), log_sums.host_as<float>(), scratch.host_as<float>()});
    host.attention_backward({shape, qkv.host(), to.host(), log_sums.host_as<float>(), from.host_as<float>(),
                             d_qkv.host(), scratch.host_as<float>()});
  }
  void run_on_gpu(Backend& gpu) {
    gpu.attention_forward({shape, qkv.gpu(), to.gpu(), log_sums.gpu_as<float>(), scratch.gpu_as<float>()});
    gpu.attention_backward({shape, qkv.gpu(), to.gpu(), log_sums.gpu_as<float>(), from.gpu_as<float>(), d_qkv.gpu(),
                            scratch.gpu_as<float>()});
  }

 private:
  static std::vector<float> random(int64_t count, float scale) {
    static RandomValues values(3);
    return values.floats(count, scale);
  }
  static int64_t scratch_elements(const AttentionShape& of, DType type) {
    return std::max(attention_scratch_elements(of, type),
                    gpu_attention_scratch_elements(of, type, AttentionKernels::kCudnn));
  }
};

class FusedAttentionOnGpu : public testing::TestWithParam<DType> {
 protected:
  FusedAttentionOnGpu()
      : device_(make_cuda_device(0)), stream_(device_->make_stream(Lane::kCompute)), gpu_(make_gpu()) {
    host_ = make_host_backend(pool_);
  }
  ~FusedAttentionOnGpu() override { simulated::cudnn_behavior() = {}; }

  std::unique_ptr<Backend> make_gpu() {
    auto backend = make_cuda_backend(*device_, {}, AttentionKernels::kCudnn);
    backend->compute_on(*stream_);
    return backend;
  }
  Layer layer(const AttentionShape& shape) { return {*device_, *stream_, shape, GetParam()}; }

  /// Runs both passes, and returns how many of them the library ran.
  int64_t check(const AttentionShape& shape) {
    SCOPED_TRACE(testing::Message() << shape.batch << " x " << shape.sequence << " tokens, " << shape.heads
                                    << " heads of " << shape.head_width << ", " << shape.kv_heads
                                    << " key/value heads, window " << shape.window);
    Layer of = layer(shape);
    const int64_t before = simulated::enqueued_attention_passes();
    of.run_on_host(*host_);
    of.run_on_gpu(*gpu_);
    EXPECT_TRUE(of.to.alike());
    EXPECT_TRUE(of.log_sums.alike(1e-5));
    // The library gets the gradient of the output in 16 bits.
    EXPECT_TRUE(of.d_qkv.alike(GetParam() == DType::kFloat32 ? 1e-5 : 2 * rounding_tolerance(GetParam())));
    return simulated::enqueued_attention_passes() - before;
  }

  ThreadPool pool_{1};
  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<Backend> gpu_, host_;
};

INSTANTIATE_TEST_SUITE_P(Types, FusedAttentionOnGpu,
                         testing::Values(DType::kFloat32, DType::kBFloat16, DType::kFloat16),
                         [](const auto& tested) { return std::string(name(tested.param)); });

TEST_P(FusedAttentionOnGpu, GivesTheResultsOfTheHost) {
  const int64_t expected = GetParam() == DType::kFloat32 ? 0 : 2;
  for (const AttentionShape& shape : std::initializer_list<AttentionShape>{{2, 2, 1, 8, 1},
                                                                           {3, 17, 4, 16, 4},
                                                                           {2, 33, 6, 24, 2},
                                                                           {2, 20, 3, 128, 1},
                                                                           {2, 40, 4, 8, 2, 1},
                                                                           {2, 40, 2, 32, 1, 7},
                                                                           {2, 40, 2, 16, 2, 39},
                                                                           {2, 40, 2, 16, 2, 40},
                                                                           {2, 40, 2, 16, 2, 500}})
    EXPECT_EQ(check(shape), expected);
}

TEST_P(FusedAttentionOnGpu, UsesTheOwnKernelsForOtherShapes) {
  EXPECT_EQ(check({2, 9, 2, 20, 2}), 0) << "the head width is no multiple of 8";
  EXPECT_EQ(check({2, 1, 2, 16, 2}), 0) << "sequences of one token";
  EXPECT_EQ(check({1, 9, 1, 136, 1}), 0) << "the library does not support the head width";
  if (GetParam() == DType::kFloat32) return;
  EXPECT_EQ(gpu_->attention_text(),
            "own kernels, because simulated cuDNN does not support the shape: the head is too wide");
  EXPECT_EQ(make_gpu()->attention_text(), "simulated cuDNN");
}

TEST_P(FusedAttentionOnGpu, UsesTheOwnKernelsForCachedKeys) {
  const AttentionShape shape{1, 4, 2, 16, 1};
  Layer of = layer(shape);
  Array cached(*device_, *stream_, std::vector<float>(static_cast<size_t>(10 * 2 * shape.kv_width()), 0.5f),
               GetParam());
  AttentionForward a{shape, of.qkv.gpu(), of.to.gpu(), of.log_sums.gpu_as<float>(), of.scratch.gpu_as<float>()};
  a.cached = {cached.gpu(), 6};
  const int64_t before = simulated::enqueued_attention_passes();
  gpu_->attention_forward(a);
  EXPECT_EQ(simulated::enqueued_attention_passes(), before);
  for (const double value : of.to.on_gpu()) EXPECT_EQ(value, 0.5);
}

TEST_P(FusedAttentionOnGpu, PlansAShapeOnceAndCanBeCaptured) {
  if (GetParam() == DType::kFloat32) GTEST_SKIP() << "fp32 uses the own kernels";
  const AttentionShape shape{2, 20, 4, 16, 2, 5};
  const int64_t before = simulated::planned_attention_passes();
  gpu_->attention_scratch_elements(shape, GetParam());
  EXPECT_EQ(simulated::planned_attention_passes(), before + 2);
  Layer of = layer(shape);
  of.run_on_gpu(*gpu_);
  const auto expected = of.d_qkv.on_gpu();
  WorkCapture capture(*stream_);
  of.run_on_gpu(*gpu_);
  const auto graph = capture.end();
  EXPECT_EQ(simulated::planned_attention_passes(), before + 2);
  for (int launch = 0; launch < 2; ++launch) {
    device_->kernels().fill(*stream_, of.d_qkv.gpu().data, GetParam(), 0.0f,
                            shape.batch * shape.sequence * shape.stride());
    graph->launch(*stream_);
    EXPECT_EQ(of.d_qkv.on_gpu(), expected);
  }
}

TEST_P(FusedAttentionOnGpu, RefusesAWorkspaceThatIsLargerThanPlanned) {
  if (GetParam() == DType::kFloat32) GTEST_SKIP() << "fp32 uses the own kernels";
  const AttentionShape shape{2, 20, 4, 16, 2};
  const int64_t bound_bytes = fused_attention_workspace_bound(shape, GetParam());
  simulated::cudnn_behavior().workspace_bytes = bound_bytes;
  EXPECT_EQ(check(shape), 2);
  simulated::cudnn_behavior().workspace_bytes = bound_bytes + 1;
  try {
    make_gpu()->attention_scratch_elements(shape, GetParam());
    ADD_FAILURE() << "the workspace was accepted";
  } catch (const UnavailableError& error) {
    const std::string message = error.what();
    for (const std::string& part :
         {std::to_string(bound_bytes + 1), std::to_string(bound_bytes), std::string("--attention own")})
      EXPECT_NE(message.find(part), std::string::npos) << message;
  }
}

TEST_P(FusedAttentionOnGpu, PlansTheSameScratchWithoutAGpu) {
  const auto planned = make_planned_gpu_backend(pool_, OperandRounding::kNone, AttentionKernels::kCudnn);
  const auto own = make_planned_gpu_backend(pool_, OperandRounding::kNone, AttentionKernels::kOwn);
  for (const AttentionShape& shape : std::initializer_list<AttentionShape>{
           {8, 1024, 12, 64, 12}, {2, 300, 6, 96, 2, 100}, {1, 64, 2, 256, 2}, {2, 64, 2, 20, 2}}) {
    EXPECT_EQ(planned->attention_scratch_elements(shape, GetParam()),
              gpu_->attention_scratch_elements(shape, GetParam()));
    EXPECT_EQ(own->attention_scratch_elements(shape, GetParam()), gpu_attention_scratch_elements(shape));
  }
}

/// Sizes that cuDNN 9.28.1 reports for the properties of an H100, without a GPU.
struct ReportedWorkspace {
  AttentionShape shape;
  int64_t of_scores, of_queries;  // backward that stores the gradients of scores, or adds those of queries in order
};
constexpr std::array kReported{ReportedWorkspace{{8, 1024, 12, 64, 12}, 201'720'064, 25'571'584},
                               ReportedWorkspace{{8, 1000, 12, 128, 4, 256}, 250'862'848, 98'700'544},
                               ReportedWorkspace{{1, 8192, 32, 128, 8}, 4'430'233'856, 269'517'056},
                               ReportedWorkspace{{2, 333, 6, 64, 2, 100}, 4'578'160, 2'062'832},
                               ReportedWorkspace{{2, 64, 4, 32, 4}, 133'376, 67'968},
                               ReportedWorkspace{{2, 64, 4, 256, 4}, 133'376, 526'720},
                               ReportedWorkspace{{1, 2048, 4, 40, 4}, 33'587'456, 1'344'768}};

TEST(FusedAttentionWorkspace, HasTheSizesThatCudnnReports) {
  constexpr int64_t kMostSlackBytes = 4096;
  constexpr const char* kLimit = "CUDNN_FRONTEND_ATTN_DP_WORKSPACE_LIMIT";
  for (const ReportedWorkspace& of : kReported) {
    for (const char* unlimited : {"-1", "5000000000", "x"}) {
      setenv(kLimit, unlimited, 1);
      const int64_t bound_bytes = fused_attention_workspace_bound(of.shape, DType::kBFloat16);
      EXPECT_GE(bound_bytes, of.of_scores);
      EXPECT_LE(bound_bytes, of.of_scores + kMostSlackBytes);
    }
    setenv(kLimit, "0", 1);
    const int64_t bound_bytes = fused_attention_workspace_bound(of.shape, DType::kBFloat16);
    EXPECT_GE(bound_bytes, of.of_queries);
    EXPECT_LE(bound_bytes, of.of_queries + kMostSlackBytes);
    unsetenv(kLimit);
  }
}

/// The size that cuDNN 9.28.1 reports for a B200.
TEST(FusedAttentionWorkspace, CoversWideHeadsOnBlackwellGpus) {
  EXPECT_GE(fused_attention_workspace_bound({2, 512, 8, 256, 2, 100}, DType::kBFloat16), 25'198'720);
}

std::string error_of_loading(const std::string& file) {
  try {
    load_cudnn(std::array{file});
  } catch (const UnavailableError& error) {
    return error.what();
  }
  return "none";
}

TEST(CudnnLibrary, NamesTheFileAndTheOwnKernelsIfItCannotBeUsed) {
  EXPECT_EQ(error_of_loading("libno_cudnn.so.9"),
            "--attention cudnn needs libno_cudnn.so.9, which was not found: install cuDNN, add its folder to "
            "LD_LIBRARY_PATH, or use --attention own.");
  EXPECT_EQ(error_of_loading("libm.so.6"),
            "libm.so.6 has no function cudnnGetVersion: install cuDNN, or use --attention own.");
  const std::string old = ALIQUOT_OLD_CUDNN;
  EXPECT_EQ(error_of_loading(old),
            "--attention cudnn needs cuDNN 9.6.0 or newer, and " + old + " is cuDNN 8.9.7: use --attention own.");
}

}  // namespace
}  // namespace aliquot::test
