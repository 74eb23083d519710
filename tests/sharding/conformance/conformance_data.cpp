#include <bit>
#include <ostream>

#include "kernels/elementwise/kernels.h"
#include "tests/sharding/conformance/conformance.h"

namespace aliquot::conformance {

void PrintTo(const Case& test_case, std::ostream* out) {
  *out << test_case.rank_count << " ranks, " << test_case.count << " elements";
}

float value(int rank, int part, int64_t element) {
  uint64_t bits = static_cast<uint64_t>(element) * 0x9E3779B97F4A7C15u +
                  static_cast<uint64_t>(rank) * 0xBF58476D1CE4E5B9u + static_cast<uint64_t>(part) * 0x94D049BB133111EBu;
  bits ^= bits >> 31;
  bits *= 0xD6E8FEB86659FD93u;
  bits ^= bits >> 32;
  // 23 random bits and one of 16 exponents, so that each order of addition rounds differently.
  const auto sign = static_cast<uint32_t>(bits >> 63) << 31;
  const uint32_t exponent = (127 - 8 + static_cast<uint32_t>(bits >> 24 & 0xF)) << 23;
  return std::bit_cast<float>(sign | exponent | static_cast<uint32_t>(bits & 0x7FFFFF));
}

void for_each_test_group(World& world, const std::function<void(Communicator&)>& body) {
  const int rank = world.rank();
  for (const auto& [color, key] : {std::pair{rank / 2, 0}, std::pair{rank % 2, -rank}}) {
    const auto group = world.communicator().split(color, key);
    body(*group);
    group->gather_objects("end");
  }
  world.communicator().gather_objects("end");
}

void write(World& world, std::byte* to, const std::vector<std::byte>& from) {
  if (from.empty()) return;
  const auto stream = world.device().make_stream(Lane::kCompute);
  world.device().kernels().copy(*stream, to, from.data(), static_cast<int64_t>(from.size()));
  stream->synchronize();
}

std::vector<std::byte> read(World& world, const std::byte* from, int64_t size_bytes) {
  std::vector<std::byte> bytes(static_cast<std::size_t>(size_bytes));
  if (bytes.empty()) return bytes;
  const auto stream = world.device().make_stream(Lane::kCompute);
  world.device().kernels().copy(*stream, bytes.data(), from, size_bytes);
  stream->synchronize();
  return bytes;
}

}  // namespace aliquot::conformance
