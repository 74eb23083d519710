#pragma once
// A file system that records its calls, and a model of the disk contents after a power loss.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "kernels/system/file_system.h"

namespace aliquot::test {

/// One call that changes the disk or makes changes durable. `node` identifies a file or directory, as an inode number
/// does; 0 is the root.
struct DiskCall {
  enum class Kind { kEntries, kWrite, kResize, kSync, kAcknowledge };
  Kind kind = Kind::kWrite;
  int rank = 0;
  int node = 0;                        // the file that is written or synced, or the directory that changes
  std::map<std::string, int> entries;  // kEntries: the new node of each name, or -1 for a removed name
  bool makes_directory = false;        // kEntries: whether the entry is a new directory
  int64_t offset = 0;                  // kWrite: the offset; kResize: the new size
  std::string bytes;
  int64_t step = 0;   // kAcknowledge: the step of the save that returned
  uint64_t seed = 0;  // kAcknowledge: the seed of the saved contents
};

/// The contents of a disk.
struct Disk {
  std::map<int, std::string> files;
  std::map<int, std::map<std::string, int>> directories;

  void apply(const DiskCall& call);
  /// Creates the files and directories in the empty directory `to`.
  void restore(const std::filesystem::path& to) const;
  /// Returns a hash of the contents.
  std::string fingerprint() const;
};

/// Records the order of the calls that several ranks make on the files in one directory. Thread-safe.
class DiskLog {
 public:
  explicit DiskLog(const std::filesystem::path& root);

  const std::vector<DiskCall>& calls() const { return calls_; }
  void acknowledge(int64_t step, uint64_t seed);

 private:
  friend class RecordingFileSystem;
  void add(DiskCall call);
  int new_node(uint64_t real, bool is_directory);
  int find_node(uint64_t real) const;  // returns -1 if nothing has the inode number `real`

  std::mutex mutex_;  // held during each call, so that the recorded order is the real one
  std::vector<DiskCall> calls_;
  Disk disk_;
  std::map<uint64_t, int> nodes_;  // key: inode number of a file or directory; value: its DiskCall::node
  int node_count_ = 0;
};

/// The file system of one rank. Makes the calls and adds them to `log`, which must outlive it.
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
  std::map<int, int> nodes_;  // key: open descriptor; value: DiskCall::node of its file or directory
};

enum class WriteOutcome { kLost, kWritten, kTorn };  // kTorn: only the first half of a write reached the disk

/// Returns the disk after a power loss that follows the first `count` calls. A change is durable if the same rank later
/// synced the changed file or directory, with a call other than `ignored`. `outcome` returns the outcome of each other
/// change. All changes that reached the disk are applied in order.
Disk after_power_loss(const std::vector<DiskCall>& calls, size_t count, size_t ignored,
                      const std::function<WriteOutcome(size_t)>& outcome);

/// Returns the indices of those changes among the first `count` calls that no sync except `ignored` has made durable.
std::vector<size_t> unsynced_changes(const std::vector<DiskCall>& calls, size_t count, size_t ignored);

}  // namespace aliquot::test
