#include "optim/update/moment_code.h"

#include <algorithm>

#include "optim/update/dynamic_code.h"

namespace aliquot {
namespace {

template <typename Code>
class MomentCode final : public BlockCode {
 public:
  float scale_of(std::span<const float> values) const override {
    uint32_t greatest = 0;
    for (const float value : values) greatest = std::max(greatest, magnitude_bits(value));
    return aliquot::scale_of(greatest);
  }
  void encode(std::span<const float> values, float scale, uint8_t* codes) const override {
    const float inverse = inverse_of(scale);
    for (size_t i = 0; i < values.size(); ++i) codes[i] = Code::of(values[i] * inverse, kNearestRise);
  }
  void decode(std::span<const uint8_t> codes, float scale, float* values) const override {
    for (size_t i = 0; i < codes.size(); ++i) values[i] = Code::value(codes[i]) * scale;
  }
};

}  // namespace

const BlockCode* moment_code(std::string_view state_name) {
  static const MomentCode<SignedCode> first;
  static const MomentCode<UnsignedCode> second;
  if (state_name == "exp_avg") return &first;
  return state_name == "exp_avg_sq" ? &second : nullptr;
}

}  // namespace aliquot
