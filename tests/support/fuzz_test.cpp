// Runs every fuzz target of a module briefly and deterministically. scripts/fuzz.sh runs the targets for a longer time.
// ALIQUOT_FUZZ_RUNS sets the number of mutated inputs per target.
#include <chrono>
#include <cstdlib>
#include <gtest/gtest.h>
#include <iostream>
#include <random>

#include "tests/support/fuzz_target.h"

namespace aliquot {
namespace {

using test::FuzzTarget;

/// Applies one random mutation: flips a bit, or changes, inserts, deletes, copies or splices bytes, numbers or words.
void mutate(std::string& input, const FuzzTarget& target, const std::vector<std::string>& corpus,
            std::mt19937_64& random) {
  const auto below = [&](size_t end) { return end == 0 ? size_t{0} : static_cast<size_t>(random() % end); };
  const size_t at = below(input.size()), length = below(std::min<size_t>(input.size() - at, 64) + 1);
  constexpr std::string_view kNumbers[] = {"0",     "-1", "255", "65536", "4294967296", "9223372036854775808",
                                           "1e400", "0.5"};
  switch (below(8)) {
    case 0:
      if (!input.empty()) input[at] = static_cast<char>(input[at] ^ (1 << below(8)));
      return;
    case 1:
      if (!input.empty()) input[at] = static_cast<char>(random());
      return;
    case 2: input.insert(at, 1, static_cast<char>(random())); return;
    case 3: input.erase(at, length); return;
    case 4: input.insert(below(input.size() + 1), input.substr(at, length)); return;
    case 5: input.replace(at, below(4), kNumbers[below(std::size(kNumbers))]); return;
    case 6:
      if (!target.words.empty()) input.insert(at, target.words[below(target.words.size())]);
      return;
    default: {
      const std::string& other = corpus[below(corpus.size())];
      const size_t from = below(other.size());
      input.replace(at, length, other.substr(from, below(std::min<size_t>(other.size() - from, 64) + 1)));
    }
  }
}

int runs_of(const FuzzTarget& target) {
  const char* wanted = std::getenv("ALIQUOT_FUZZ_RUNS");
  if (wanted != nullptr) return std::atoi(wanted);
  return target.name == "checkpoint" ? 400 : 20'000;
}

class Fuzz : public ::testing::TestWithParam<size_t> {};

TEST_P(Fuzz, TargetReturnsForAnyInput) {
  const FuzzTarget& target = test::fuzz_targets()[GetParam()];
  const std::vector<std::string> seeds = target.seeds();
  const auto begun = std::chrono::steady_clock::now();
  target.run("");
  for (const std::string& seed : seeds) {
    target.run(seed);
    for (size_t end = 0; end < std::min<size_t>(seed.size(), 200); ++end)
      target.run(std::string_view(seed).substr(0, end));
  }
  std::mt19937_64 random(7);
  const int runs = runs_of(target);
  for (int run = 0; run < runs; ++run) {
    std::string input = seeds[random() % seeds.size()];
    for (uint64_t changes = 1 + random() % 6; changes > 0; --changes) mutate(input, target, seeds, random);
    target.run(input);
  }
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begun;
  std::cout << target.name << ": " << runs << " inputs in " << seconds.count() << " s\n";
}

INSTANTIATE_TEST_SUITE_P(Targets, Fuzz, ::testing::Range(size_t{0}, test::fuzz_targets().size()),
                         [](const auto& each) { return std::string(test::fuzz_targets()[each.param].name); });

}  // namespace
}  // namespace aliquot
