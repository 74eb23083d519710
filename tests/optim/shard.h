#pragma once
// For tests: a shard with its weights, gradient and optimizer state.

#include <cstring>
#include <vector>

#include "kernels/formats/float16.h"
#include "kernels/formats/split_master.h"
#include "optim/update/update_host.h"

namespace aliquot {

enum class MasterForm { kWhole, kBf16Copy, kFp16Copy, kSplit };
inline constexpr MasterForm kMasterForms[] = {MasterForm::kWhole, MasterForm::kBf16Copy, MasterForm::kFp16Copy,
                                              MasterForm::kSplit};

/// Returns optimizers whose options differ from the defaults, so that a test detects an option that the code ignores.
inline std::vector<Optimizer> every_optimizer() {
  return {AdamW{.lr = 0.01f, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .weight_decay = 0.1f},
          Adam{.lr = 0.01f, .beta1 = 0.8f, .beta2 = 0.99f, .eps = 1e-6f, .weight_decay = 0.05f},
          Sgd{.lr = 0.1f, .momentum = 0.0f, .dampening = 0.0f, .weight_decay = 0.01f},
          Sgd{.lr = 0.1f, .momentum = 0.9f, .dampening = 0.2f, .weight_decay = 0.01f},
          Sgd{.lr = 0.1f, .momentum = 0.9f, .dampening = 0.0f, .weight_decay = 0.01f, .nesterov = true},
          Lion{.lr = 0.01f, .beta1 = 0.9f, .beta2 = 0.99f, .weight_decay = 0.1f},
          AdamW8bit{.lr = 0.01f, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .weight_decay = 0.1f},
          AdamW8bit{.lr = 0.01f, .beta1 = 0.8f, .beta2 = 0.99f, .eps = 1e-6f, .rounding = Rounding::kStochastic}};
}

/// A fast generator of numbers in [-2, 2).
struct Noise {
  uint64_t state;
  float next() {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return static_cast<float>(static_cast<int32_t>(state >> 32)) * 0x1p-30f;
  }
};

struct Shard {
  std::vector<Segment> segments;
  MasterForm form;
  DType gradient_dtype;
  std::vector<float> whole;
  std::vector<uint16_t> copy, high, bf16_gradient;
  std::vector<int16_t> low;
  std::vector<float> gradient;
  DType moments;
  // Moments in bf16 use only the first half of each vector's bytes, and 8-bit codes only the first quarter.
  std::vector<float> states[kMaxStates];
  UpdateArgs args;

  Shard(std::vector<Segment> table, int64_t count, MasterForm master_form, DType dtype,
        DType of_moments = DType::kFloat32)
      : segments(std::move(table)), form(master_form), gradient_dtype(dtype), moments(of_moments) {
    const auto n = static_cast<size_t>(count);
    Noise noise{7};
    whole.resize(n), copy.resize(n, 0xABCD), high.resize(n), low.resize(n), gradient.resize(n), bf16_gradient.resize(n);
    for (auto& state : states) state.resize(n);
    for (size_t i = 0; i < n; ++i) {
      whole[i] = noise.next();
      high[i] = master_high(whole[i]), low[i] = master_low(whole[i]);
    }
    args.count = count;
    bind_args();
  }
  Shard(const Shard&) = delete;

  void bind_args() {
    args.gradient_dtype = gradient_dtype;
    args.gradient = gradient_dtype == DType::kFloat32 ? static_cast<void*>(gradient.data()) : bf16_gradient.data();
    if (form == MasterForm::kSplit) {
      args.master = {.high = high.data(), .low = low.data()};
    } else {
      args.master.whole = whole.data();
      args.master.copy = form == MasterForm::kWhole ? nullptr : copy.data();
      args.master.copy_dtype = form == MasterForm::kFp16Copy ? DType::kFloat16 : DType::kBFloat16;
    }
    for (int i = 0; i < kMaxStates; ++i) args.states[i] = states[i].data();
    args.segments = segments.data();
    args.segment_count = static_cast<int64_t>(segments.size());
    args.moments = moments;
  }

  /// Sets the element type and rounding of the moments of `optimizer`.
  void set_moment_format(const Optimizer& optimizer) {
    args.moments = moment_dtype(optimizer, moments);
    args.rounding = rounding(optimizer);
  }

  /// Sets the gradient of a step. Its values are exact in bf16, so they do not depend on the dtype. Some are zero, tiny
  /// or large.
  void draw_gradient(unsigned step) {
    Noise noise{100 + step};
    for (size_t i = 0; i < gradient.size(); ++i) {
      const float scale = i % 17 == 0 ? 1e-20f : (i % 19 == 0 ? 1e10f : 1.0f);
      bf16_gradient[i] = i % 23 == 0 ? uint16_t{0} : master_high(noise.next() * scale);
      gradient[i] = bf16_to_float(bf16_gradient[i]);
    }
  }

  void step(Isa isa, const Optimizer& optimizer, int64_t number, float factor = 0.37f) {
    draw_gradient(static_cast<unsigned>(number));
    set_moment_format(optimizer);
    update_range(isa, args, step_of(optimizer, number, factor), 0, args.count);
  }

  static UpdateStep step_of(const Optimizer& optimizer, int64_t number, float factor = 0.37f) {
    return {.rule = rule_at(optimizer, learning_rate(optimizer), number),
            .gradient_factor = factor,
            .seed = 3,
            .step = number};
  }

  float weight(size_t i) const { return form == MasterForm::kSplit ? merge_master(high[i], low[i]) : whole[i]; }
};

template <typename T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

inline bool same_bits(const Shard& a, const Shard& b) {
  bool same =
      same_bits(a.whole, b.whole) && same_bits(a.copy, b.copy) && same_bits(a.high, b.high) && same_bits(a.low, b.low);
  for (int i = 0; i < kMaxStates; ++i) same = same && same_bits(a.states[i], b.states[i]);
  return same;
}

inline int64_t whole_blocks(int64_t count) { return (count + kBlockElements - 1) / kBlockElements * kBlockElements; }

/// Returns segments for consecutive tensors with these element counts. Each tensor starts on a block. The tensors have
/// different rate and decay scales.
inline std::vector<Segment> segments_of(const std::vector<int64_t>& counts) {
  std::vector<Segment> segments;
  int64_t offset = 0;
  for (const int64_t count : counts) {
    const auto index = static_cast<int32_t>(segments.size());
    segments.push_back({.offset = offset,
                        .count = count,
                        .global_offset = 0,
                        .parameter = index,
                        .lr_scale = index % 3 == 2 ? 0.5f : 1.0f,
                        .decay_scale = index % 2 == 1 ? 0.0f : 1.0f});
    offset += whole_blocks(count);
  }
  return segments;
}

inline int64_t count_of(const std::vector<Segment>& segments) {
  return segments.empty() ? 0 : whole_blocks(segments.back().offset + segments.back().count);
}

}  // namespace aliquot
