// Tests of pieces that consist of runs against a comparison element by element.
#include "sharding/state_pieces.h"

#include <algorithm>
#include <cstring>
#include <gtest/gtest.h>
#include <random>

namespace aliquot {
namespace {

constexpr int64_t kTensorElements = 400;

/// Reads and writes the piece like host memory. Expects that the ranges are in one run if the piece has gaps in memory.
class CheckedAccess final : public PieceAccess {
 public:
  void read(const StatePiece& piece, int64_t first, int64_t count, std::byte* to) const override {
    expect_valid(piece, first, count);
    std::copy_n(piece.bytes + first * 2, count * 2, to);
  }
  void write(const StatePiece& piece, int64_t first, int64_t count, const std::byte* from) const override {
    ++write_count;
    expect_valid(piece, first, count);
    std::copy_n(from, count * 2, piece.bytes + first * 2);
  }
  mutable int write_count = 0;

 private:
  static void expect_valid(const StatePiece& piece, int64_t first, int64_t count) {
    if (!has_gaps_in_memory(piece)) return;
    EXPECT_EQ(first / piece.memory_stride, (first + count - 1) / piece.memory_stride);
    EXPECT_LE(first % piece.memory_stride + count, piece.run);
  }
};

/// A piece of a tensor of 16-bit elements, and its elements in the order of the piece. The value of element i of the
/// tensor is i + 1.
struct TestPiece {
  StatePiece piece;
  std::vector<int64_t> elements;
  std::vector<int16_t> memory;  // -1 in gaps

  explicit TestPiece(std::mt19937& random) {
    const auto between = [&](int64_t least, int64_t most) {
      return least + static_cast<int64_t>(random() % static_cast<uint64_t>(most - least + 1));
    };
    piece.offset = between(0, 40);
    const int64_t runs = between(0, 6);
    if (random() % 4 == 0) {
      piece.count = runs;
    } else {
      piece.run = between(1, 20);
      piece.stride = between(piece.run, 50);
      piece.count = runs * piece.run;
      if (random() % 2 == 0) piece.memory_stride = between(piece.run, 30);
    }
    const int64_t run = piece.run == 0 ? piece.count : piece.run;
    const int64_t spacing = piece.memory_stride == 0 ? run : piece.memory_stride;
    memory.assign(static_cast<std::size_t>(spacing * 6 + run), -1);
    for (int64_t i = 0; i < piece.count; ++i) {
      elements.push_back(piece.offset + i / run * piece.stride + i % run);
      positions_.push_back(i / run * spacing + i % run);
      memory[static_cast<std::size_t>(positions_.back())] = static_cast<int16_t>(elements.back() + 1);
    }
    piece.bytes = reinterpret_cast<std::byte*>(memory.data());
  }

  /// Returns the memory after the elements of the piece in [first, last) of the tensor were negated.
  std::vector<int16_t> negated(int64_t first, int64_t last) const {
    std::vector<int16_t> result = memory;
    for (std::size_t i = 0; i < elements.size(); ++i) {
      if (elements[i] >= first && elements[i] < last) result[static_cast<std::size_t>(positions_[i])] *= -1;
    }
    return result;
  }

 private:
  std::vector<int64_t> positions_;
};

std::span<std::byte> bytes_of(std::vector<int16_t>& values) { return std::as_writable_bytes(std::span(values)); }

void expect_reads(const TestPiece& test, const StateTensor& tensor, int64_t first, int64_t last) {
  std::vector<int16_t> all;
  for (const int64_t element : test.elements) all.push_back(static_cast<int16_t>(element + 1));
  for (int64_t first_byte = 2 * first; first_byte < 2 * last; first_byte += 3) {
    std::vector<std::byte> part(static_cast<std::size_t>(2 * last - first_byte));
    read_piece(tensor, test.piece, first_byte, part);
    EXPECT_EQ(std::memcmp(part.data(), bytes_of(all).data() + first_byte, part.size()), 0);
  }
}

/// Writes the negated values of elements [first, last) of the tensor.
void expect_writes(TestPiece& test, const StateTensor& tensor, int64_t first, int64_t last) {
  const std::vector<int16_t> before = test.memory, expected = test.negated(first, last);
  std::vector<int16_t> values;
  for (int64_t i = first; i < last; ++i) values.push_back(static_cast<int16_t>(-i - 1));
  write_overlaps(tensor, test.piece, first, bytes_of(values));
  EXPECT_EQ(test.memory, expected);
  std::copy(before.begin(), before.end(), test.memory.begin());
  write_elements(tensor, first, bytes_of(values));
  EXPECT_EQ(test.memory, expected);
  std::copy(before.begin(), before.end(), test.memory.begin());
  const int64_t index = elements_before(test.piece, first), end = elements_before(test.piece, last);
  std::vector<int16_t> own;
  for (int64_t i = index; i < end; ++i)
    own.push_back(static_cast<int16_t>(-test.elements[static_cast<std::size_t>(i)] - 1));
  write_piece(tensor, test.piece, index, bytes_of(own));
  EXPECT_EQ(test.memory, expected);
  std::copy(before.begin(), before.end(), test.memory.begin());
}

TEST(StatePieces, ReadAndWriteTheElementsOfTheirRuns) {
  std::mt19937 random(3);
  const CheckedAccess access;
  for (int i = 0; i < 400; ++i) {
    TestPiece test(random);
    ASSERT_EQ(piece_defect(test.piece, kTensorElements), "");
    const auto count = std::ssize(test.elements);
    for (const PieceAccess* with :
         {static_cast<const PieceAccess*>(nullptr), static_cast<const PieceAccess*>(&access)}) {
      const StateTensor tensor{"t", {kTensorElements}, DType::kInt16, {test.piece}, with};
      expect_reads(test, tensor, static_cast<int64_t>(random() % static_cast<uint64_t>(count + 1)), count);
      const auto first = static_cast<int64_t>(random() % 100);
      expect_writes(test, tensor, first, first + static_cast<int64_t>(random() % 200));
      expect_writes(test, tensor, 0, kTensorElements);
    }
  }
}

TEST(StatePieces, FindTheElementsInARange) {
  std::mt19937 random(4);
  for (int i = 0; i < 400; ++i) {
    const TestPiece test(random);
    EXPECT_EQ(end_of(test.piece), test.elements.empty() ? test.piece.offset : test.elements.back() + 1);
    const auto first = static_cast<int64_t>(random() % 100), last = first + static_cast<int64_t>(random() % 200);
    EXPECT_EQ(elements_before(test.piece, first),
              std::ranges::count_if(test.elements, [&](int64_t element) { return element < first; }));
    std::vector<int64_t> expected, found;
    for (const int64_t element : test.elements) {
      if (element >= first && element < last) expected.push_back(element);
    }
    for_each_overlap(test.piece, first, last, [&](const Overlap& part, int64_t index) {
      for (int64_t k = 0; k < part.count; ++k) {
        found.push_back(part.first + k);
        EXPECT_EQ(test.elements[static_cast<std::size_t>(index + k)], part.first + k);
        EXPECT_EQ(element_at(test.piece, index + k), part.first + k);
      }
    });
    EXPECT_EQ(found, expected);
  }
}

TEST(StatePieces, AreCoveredByRanges) {
  std::mt19937 random(5);
  for (int i = 0; i < 400; ++i) {
    const TestPiece test(random);
    // With the larger width, gaps of two elements exceed kSkippedGapBytes.
    for (const int64_t width : {int64_t{2}, kSkippedGapBytes / 2 + 1}) {
      const int64_t count = std::ssize(test.elements);
      const auto begin = static_cast<int64_t>(random() % static_cast<uint64_t>(count + 1));
      const int64_t most = 1 + static_cast<int64_t>(random() % 60);
      std::vector<int64_t> found;
      for_each_range(test.piece, width, begin, count, most, [&](int64_t first, int64_t last) {
        EXPECT_LE(last - first, most);
        int64_t next = first;
        for (const int64_t element : test.elements) {
          if (element < first || element >= last) continue;
          EXPECT_LE((element - next) * width, kSkippedGapBytes);
          next = element + 1;
          found.push_back(element);
        }
        EXPECT_EQ(next, last);
      });
      EXPECT_EQ(found, std::vector<int64_t>(test.elements.begin() + begin, test.elements.end()));
    }
  }
}

/// One call for each run would be slow for device memory.
TEST(StatePieces, WriteRunsThatAreAdjacentInMemoryWithOneCall) {
  const CheckedAccess access;
  std::vector<int16_t> memory(40), values(100, 1);
  const StateTensor tensor{"t", {100}, DType::kInt16, {{0, 40, bytes_of(memory).data(), false, 4, 10}}, &access};
  write_elements(tensor, 0, bytes_of(values));
  EXPECT_EQ(access.write_count, 1);
  EXPECT_EQ(memory, std::vector<int16_t>(40, 1));
}

TEST(StatePieces, NameTheirDefect) {
  const auto defect = [](const StatePiece& piece) { return piece_defect(piece, 20); };
  EXPECT_EQ(defect({.offset = 2, .count = 6, .run = 3, .stride = 15}), "");
  EXPECT_EQ(defect({.offset = 2, .count = 6, .run = 3, .stride = 16}),
            "is out of range: offset 2 and 2 runs of 3 elements with stride 16, but the tensor has 20 elements");
  EXPECT_EQ(defect({.offset = 2, .count = 6, .run = 3, .stride = INT64_MAX}),
            "is out of range: offset 2 and 2 runs of 3 elements with stride 9223372036854775807, but the tensor has 20 "
            "elements");
  EXPECT_EQ(defect({.offset = 2, .count = 7, .run = 3, .stride = 3}),
            "has count 7 and run 3: expected a count that is a multiple of the run");
  EXPECT_EQ(defect({.offset = 2, .count = 6, .run = -3, .stride = 3}),
            "has count 6 and run -3: expected a count that is a multiple of the run");
  EXPECT_EQ(defect({.offset = 2, .count = 6, .run = 3, .stride = 2}),
            "has run 3 and stride 2: expected a stride of at least the run");
  EXPECT_EQ(defect({.offset = 2, .count = 6, .run = 3, .stride = 3, .memory_stride = 2}),
            "has run 3 and memory stride 2: expected 0, or a memory stride of at least the run");
  EXPECT_EQ(defect({.offset = 15, .count = 6}),
            "is out of range: offset 15 and count 6, but the tensor has 20 elements");
  EXPECT_EQ(defect({.offset = 2, .count = 3, .run = 3}), "");
  EXPECT_EQ(defect({.offset = 20, .count = 0, .run = 3}), "");
}

}  // namespace
}  // namespace aliquot
