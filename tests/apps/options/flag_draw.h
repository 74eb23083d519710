#pragma once
// Random command lines of `aliquot train`.

#include <cstdint>
#include <initializer_list>
#include <random>
#include <string>
#include <vector>

namespace aliquot::test {

using Words = std::vector<std::string>;

void add(Words& words, const Words& more);
Words joined(Words words, const Words& more);

/// Random numbers that depend only on the seed of a case, so that one case can be repeated alone.
class Draw {
 public:
  explicit Draw(uint64_t seed) : random_(seed) {}
  int below(int count) { return static_cast<int>(random_() % static_cast<uint64_t>(count)); }
  bool chance(int percent) { return below(100) < percent; }
  std::string one_of(std::initializer_list<const char*> words) {
    return *(words.begin() + below(static_cast<int>(words.size())));
  }

 private:
  std::mt19937_64 random_;
};

enum class Pipelined : uint8_t { kNever, kSometimes, kAlways };

/// How ranks are started, and the options that may change the digest. Each pipeline stage has `ranks` ranks for each of
/// the `tensor` positions in a tensor group. If `ranks_per_node` is not 0, the run emulates nodes of that many ranks.
struct Case {
  int ranks = 1, tensor = 1, ranks_per_node = 0, uses = 0;
  Pipelined pipelined = Pipelined::kSometimes;
  bool processes = false, quantized_weights = false, quantized_gradients = false, half = false, unclipped = false;
  bool tied = false, adds_in_full_gradients = false;
  bool lora = false;  // the run cannot save: checkpoints of adapters need the weights of --init
  Words words;
};

/// Draws the world, the model and the options that may change the digest.
Case draw_case(Draw& draw, bool has_mpi);

/// Returns options that do not change the digest of `drawn`. A negative `stage` means a random ZeRO stage. Offloaded
/// data is in `scratch`, which must contain the file data.bytes.
Words draw_free(Draw& draw, const Case& drawn, int stage, const std::string& scratch);

}  // namespace aliquot::test
