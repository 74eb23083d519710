#pragma once
// System calls that are made and written down, and what a disk may hold if the power fails after some of them.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "kernels/system/file_system.h"

namespace aliquot::test {

/// One call that changes a disk, or makes changes last. Files and directories are numbered; 0 is the root.
struct DiskCall {
  enum class Kind { kEntries, kWrite, kResize, kSync, kAcknowledge };
  Kind kind = Kind::kWrite;
  int rank = 0;
  int node = 0;                        // the file written to or flushed, the directory changed
  std::map<std::string, int> entries;  // kEntries: names that now mean those nodes; -1: none
  bool makes_directory = false;        // the node it names is a new directory
  int64_t offset = 0;                  // kWrite; kResize: the size
  std::string bytes;
  int64_t step = 0;   // kAcknowledge: a save of that step has returned
  uint64_t seed = 0;  // with these contents
};

/// What a disk holds.
struct Disk {
  std::map<int, std::string> files;
  std::map<int, std::map<std::string, int>> directories;

  void apply(const DiskCall& call);
  /// Makes files and folders of it beneath an empty directory.
  void restore(const std::filesystem::path& to) const;
  /// The same for the same contents.
  std::string fingerprint() const;
};

/// What several ranks did to everything beneath one directory, in order. Thread-safe.
class DiskLog {
 public:
  explicit DiskLog(const std::filesystem::path& root);

  const std::vector<DiskCall>& calls() const { return calls_; }
  void acknowledge(int64_t step, uint64_t seed);

 private:
  friend class RecordingFileSystem;
  void add(DiskCall call);
  int new_node(uint64_t real, bool is_directory);
  int find_node(uint64_t real) const;  // -1: not beneath the root

  std::mutex mutex_;  // held while a call is made, so that the order written down is the order made
  std::vector<DiskCall> calls_;
  Disk now_;
  std::map<uint64_t, int> nodes_;  // by the real one's number
  int node_count_ = 0;
};

/// One rank's. Makes the calls and adds them to the log, which outlives it.
class RecordingFileSystem final : public FileSystem {
 public:
  RecordingFileSystem(DiskLog& log, int rank) : log_(log), rank_(rank) {}

  int open_at(int directory, const char* name, int flags, mode_t mode) override;
  int close(int file) override;
  ssize_t pwrite(int file, const void* from, size_t count, off_t offset) override;
  int allocate(int file, off_t size_bytes) override;
  int truncate(int file, off_t size_bytes) override;
  int sync(int file) override;
  int make_directory_at(int directory, const char* name, mode_t mode) override;
  int rename_at(int directory, const char* from, const char* to, unsigned flags) override;
  int unlink_at(int directory, const char* name, int flags) override;

 private:
  int node_of(int file) const;
  DiskCall call(DiskCall::Kind kind, int node) const;

  DiskLog& log_;
  int rank_;
  std::map<int, int> nodes_;  // by descriptor
};

enum class WriteOutcome { kLost, kKept, kTorn };  // torn: the first half of a write alone

/// The disk after the first `count` calls, when the power fails there. A change lasts for certain if the same rank flushed
/// what it changed before that, with a call other than `ignored`; the others meet the fate they are given. Whatever lasts is
/// applied in order, so what is lost lets later changes pass it.
Disk after_power_loss(const std::vector<DiskCall>& calls, size_t count, size_t ignored,
                      const std::function<WriteOutcome(size_t)>& outcome);

/// Of the first `count` calls, the changes that no flush but `ignored` has made certain.
std::vector<size_t> unsynced_changes(const std::vector<DiskCall>& calls, size_t count, size_t ignored);

}  // namespace aliquot::test
