// Checks that the update and its digests have the bits of the plain loop on every device: on host threads and on a GPU.

#include <array>
#include <functional>
#include <gtest/gtest.h>
#include <limits>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>

#include "optim/update/state_digests.h"
#include "optim/update/update.h"
#include "tests/optim/shard.h"

namespace aliquot {
namespace {

struct DeviceFactory {
  const char* name;
  std::function<std::unique_ptr<Device>()> make;
  Lane lane;
};

/// A host array and its copy on a device. The constructor copies to the device, fetch() back.
class DeviceCopy {
 public:
  template <typename T>
  DeviceCopy(Device& device, Stream& stream, std::vector<T>& host)
      : host_(host.data()),
        size_bytes_(static_cast<int64_t>(host.size() * sizeof(T))),
        buffer_(device.allocate(size_bytes_ + 64, Category::kStaging, "test")),
        copy_([&device, &stream](void* to, const void* from, int64_t size_bytes) {
          device.kernels().copy(stream, to, from, size_bytes);
        }) {
    copy_(buffer_.data(), host_, size_bytes_);
  }

  void fetch() { copy_(host_, buffer_.data(), size_bytes_); }
  template <typename T>
  T* as() const {
    return buffer_.as<T>();
  }

 private:
  void* host_;
  int64_t size_bytes_;
  Buffer buffer_;
  std::function<void(void*, const void*, int64_t)> copy_;
};

class UpdateOnDevice : public testing::TestWithParam<DeviceFactory> {
 protected:
  void SetUp() override {
    if (GetParam().name == std::string("cuda") && cuda_device_count() == 0) {
      GTEST_SKIP() << "no usable GPU: the kernel is compiled but not run";
    }
    device_ = GetParam().make();
    stream_ = device_->make_stream(GetParam().lane);
  }

  using Digests = std::array<std::vector<uint64_t>, kStatePartCount>;

  /// Copies `shard` to the device, performs one step there, and copies it back. If `digests` is set, the step compares
  /// and computes digests.
  void step(Shard& shard, const UpdateStep& of, Digests* digests = nullptr) {
    DeviceCopy whole(*device_, *stream_, shard.whole), copy(*device_, *stream_, shard.copy);
    DeviceCopy high(*device_, *stream_, shard.high), low(*device_, *stream_, shard.low);
    DeviceCopy wide(*device_, *stream_, shard.gradient), narrow(*device_, *stream_, shard.bf16_gradient);
    DeviceCopy segments(*device_, *stream_, shard.segments);
    std::vector<DeviceCopy> states;
    for (auto& state : shard.states) states.emplace_back(*device_, *stream_, state);

    UpdateArgs args = shard.args;
    args.gradient = shard.gradient_dtype == DType::kFloat32 ? wide.as<void>() : narrow.as<void>();
    if (args.master.whole != nullptr) args.master.whole = whole.as<float>();
    if (args.master.copy != nullptr) args.master.copy = copy.as<void>();
    if (args.master.high != nullptr) args.master.high = high.as<uint16_t>(), args.master.low = low.as<int16_t>();
    for (size_t k = 0; k < states.size(); ++k) args.states[k] = states[k].as<void>();
    args.segments = segments.as<Segment>();
    const UpdateKernels& kernels = update_kernels(device_->kind());
    StateCheck check;
    Buffer found = device_->allocate_host(sizeof(FoundDifference), "test");
    check.found = new (found.data()) FoundDifference;
    check.on_difference = [](const StateDifference&, int64_t) {
      throw std::logic_error("the host found a difference");
    };
    std::vector<DeviceCopy> digest_copies;
    for (std::size_t p = 0; digests != nullptr && p < digests->size(); ++p) {
      digest_copies.emplace_back(*device_, *stream_, (*digests)[p]);
      check.digests[p] = digest_copies.back().as<uint64_t>();
      args.check = &check;
    }
    if (digests != nullptr) kernels.record(*stream_, args);
    kernels.update(*stream_, args, of);
    for (DeviceCopy& copied : digest_copies) copied.fetch();
    for (DeviceCopy* array : {&whole, &copy, &high, &low}) array->fetch();
    for (DeviceCopy& state : states) state.fetch();
    stream_->synchronize();
    EXPECT_FALSE(check.found->exists());
  }

  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
};

TEST_P(UpdateOnDevice, GivesTheBitsOfThePlainLoop) {
  const auto segments = segments_of({1, 257, 0, 3000, 17, 90000, 5, 768});
  for (const Optimizer& optimizer : every_optimizer()) {
    for (const MasterForm form : kMasterForms) {
      for (const DType gradient : {DType::kFloat32, DType::kBFloat16}) {
        for (const DType moments : {DType::kFloat32, DType::kBFloat16}) {
          Shard plain(segments, count_of(segments), form, gradient, moments);
          Shard on_device(segments, count_of(segments), form, gradient, moments);
          for (int number = 1; number <= 2; ++number) {
            plain.step(Isa::kPlain, optimizer, number);
            on_device.draw_gradient(static_cast<unsigned>(number));
            on_device.set_moment_format(optimizer);
            step(on_device, Shard::step_of(optimizer, number));
          }
          ASSERT_TRUE(same_bits(plain, on_device)) << name(optimizer) << " form " << static_cast<int>(form)
                                                   << " gradients " << name(gradient) << " moments " << name(moments);
        }
      }
    }
  }
}

TEST_P(UpdateOnDevice, DigestsAreThoseOfTheHost) {
  const auto segments = segments_of({1, 257, 0, 3000, 17, 9000, 5, 768});
  const auto blocks = static_cast<std::size_t>(count_of(segments) / kBlockElements);
  for (const Optimizer& optimizer : every_optimizer()) {
    for (const MasterForm form : kMasterForms) {
      for (const DType moments : {DType::kFloat32, DType::kBFloat16}) {
        Shard shard(segments, count_of(segments), form, DType::kFloat32, moments);
        shard.draw_gradient(1);
        shard.set_moment_format(optimizer);
        Digests digests, expected;
        for (Digests* each : {&digests, &expected}) each->fill(std::vector<uint64_t>(blocks));
        step(shard, Shard::step_of(optimizer, 1), &digests);
        StateCheck check;
        for (std::size_t p = 0; p < expected.size(); ++p) check.digests[p] = expected[p].data();
        shard.args.check = &check;
        record_digests(shard.args, 0, shard.args.count);
        EXPECT_EQ(digests, expected) << name(optimizer) << " form " << static_cast<int>(form) << " moments "
                                     << name(moments);
        EXPECT_NE(expected[0], std::vector<uint64_t>(blocks));
      }
    }
  }
}

/// A kernel keeps the first difference of the first step that has one.
TEST_P(UpdateOnDevice, FindsTheFirstDifference) {
  if (device_->kind() == DeviceKind::kHost) GTEST_SKIP() << "a host calls StateCheck::on_difference";
  std::vector<float> values(2048, 1.0f);
  std::vector<Segment> table = {{0, 2048, 0, 0}};
  std::vector<uint64_t> digests(8);
  DeviceCopy weights(*device_, *stream_, values), segments(*device_, *stream_, table);
  DeviceCopy recorded(*device_, *stream_, digests);
  Buffer found = device_->allocate_host(sizeof(FoundDifference), "test");
  StateCheck check;
  check.digests[0] = recorded.as<uint64_t>();
  check.found = new (found.data()) FoundDifference;
  const UpdateArgs args{.master = {.whole = weights.as<float>()},
                        .segments = segments.as<Segment>(),
                        .segment_count = 1,
                        .count = 2048,
                        .check = &check};
  const UpdateKernels& kernels = update_kernels(device_->kind());
  kernels.record(*stream_, args);
  kernels.compare(*stream_, args, 1);
  stream_->synchronize();
  EXPECT_FALSE(check.found->exists());
  for (const int64_t block : {6, 3, 1}) {
    device_->kernels().fill(*stream_, weights.as<float>() + block * kBlockElements, DType::kFloat32, 2.0f, 1);
    if (block == 1) kernels.compare(*stream_, args, 7);
    if (block == 3) kernels.compare(*stream_, args, 6);
  }
  stream_->synchronize();
  ASSERT_TRUE(check.found->exists());
  EXPECT_EQ(check.found->step, 6u);
  EXPECT_EQ(check.found->difference(), (StateDifference{StatePart::kParameters, 3}));
}

TEST_P(UpdateOnDevice, SkipsANonfiniteFactorAndAcceptsAnEmptyShard) {
  const auto segments = segments_of({300});
  Shard before(segments, 512, MasterForm::kBf16Copy, DType::kFloat32),
      after(segments, 512, MasterForm::kBf16Copy, DType::kFloat32);
  step(after, Shard::step_of(AdamW{}, 1, std::numeric_limits<float>::quiet_NaN()));
  EXPECT_TRUE(same_bits(before, after));
  Shard empty({}, 0, MasterForm::kSplit, DType::kBFloat16);
  step(empty, Shard::step_of(AdamW{}, 1));
}

INSTANTIATE_TEST_SUITE_P(Devices, UpdateOnDevice,
                         testing::Values(DeviceFactory{"host", [] { return make_host_device(1); }, Lane::kCompute},
                                         DeviceFactory{"threads", [] { return make_host_device(3); }, Lane::kIo},
                                         DeviceFactory{"cuda", [] { return make_cuda_device(0); }, Lane::kCompute}),
                         [](const auto& of) { return std::string(of.param.name); });

}  // namespace
}  // namespace aliquot
