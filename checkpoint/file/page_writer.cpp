#include "checkpoint/file/page_writer.h"

#include <algorithm>

#include "checkpoint/hash/crc32c.h"

namespace aliquot {

void PageWriter::write_runs() {
  for (const PageRun& run : image_.layout().plan().runs) {
    if (run.rank != image_.rank()) continue;
    for (TilePart part : split_at_tiles(run.begin, run.end)) {
      part.crc = write(part.begin, part.count);
      parts_.push_back(part);
    }
  }
}

void PageWriter::write_window(const PageRun& window) {
  if (file_.direct()) {
    submit();
    lane_.wait(submitted_);
    windows_replace_direct_io_ = file_.direct();  // the file system may have rejected direct I/O
    file_.set_direct(false);
  }
  const TilePart shared = image_.layout().shared_part(window);
  for (const PageRun& run : image_.layout().plan_window(window).runs) {
    if (run.rank != image_.rank()) continue;
    if (parts_.empty() || parts_.back().begin != shared.begin) parts_.push_back(shared);
    const uint32_t crc = write(run.begin, run.end - run.begin);
    add_to_part(parts_.back(), run.begin, run.end - run.begin, crc);
  }
}

std::vector<TilePart> PageWriter::finish() {
  submit();
  lane_.wait(submitted_);
  return std::move(parts_);
}

/// Returns the checksum of the bytes. Small runs share a chunk, and large ones begin a new chunk.
uint32_t PageWriter::write(int64_t begin, int64_t count) {
  uint32_t crc = 0;
  for (const int64_t end = begin + count; begin < end;) {
    const int64_t part = std::min(StagingRing::kChunkBytes, end - begin);
    if (part > StagingRing::kChunkBytes - used_bytes_) submit();
    if (used_bytes_ == 0 && submitted_ >= StagingRing::kChunks) lane_.wait(submitted_ - StagingRing::kChunks + 1);
    const auto bytes = ring_.chunk(submitted_).subspan(static_cast<size_t>(used_bytes_), static_cast<size_t>(part));
    crc = fill(bytes, begin, crc);
    writes_.push_back({bytes, begin});
    used_bytes_ += part;
    begin += part;
  }
  return crc;
}

/// Copies and hashes in small parts, so that each part is still in the cache when it is hashed.
uint32_t PageWriter::fill(std::span<std::byte> bytes, int64_t begin, uint32_t crc) const {
  constexpr size_t kPartBytes = 96 << 10;
  for (size_t at = 0; at < bytes.size(); at += kPartBytes) {
    const auto part = bytes.subspan(at, std::min(kPartBytes, bytes.size() - at));
    image_.read(part, begin + static_cast<int64_t>(at));
    crc = crc32c(part, crc);
  }
  return crc;
}

void PageWriter::submit() {
  if (writes_.empty()) return;
  lane_.submit([this, writes = std::exchange(writes_, {})] {
    for (const Write& write : writes) file_.write(write.bytes, write.offset);
  });
  ++submitted_;
  used_bytes_ = 0;
}

}  // namespace aliquot
