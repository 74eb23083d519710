#pragma once
// Ranges of a file read in order, the next ones on their way while one is worked on.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

#include "kernels/system/ledger.h"

namespace aliquot {

/// Bytes [begin, begin + count) of a file.
struct FileRange {
  int64_t begin = 0, count = 0;
};

/// Leaves bytes of the file, from `offset` on, at `to`. Called from a thread that read_ahead() makes.
using ReadBytes = std::function<void(std::span<std::byte> to, int64_t offset)>;
/// `bytes`, a part of range `index`, lie at `offset` of the file. Called from the caller's thread; they are its own until
/// it returns.
using TakeBytes = std::function<void(std::size_t index, std::span<const std::byte> bytes, int64_t offset)>;

/// Reads the ranges, a chunk of a staging ring at a time, and hands the chunks on in order. A range that begins on a page
/// is read in chunks that do. Throws what either of the two throws.
void read_ahead(std::span<const FileRange> ranges, const ReadBytes& read, const TakeBytes& take, Ledger* ledger);

}  // namespace aliquot
