// Simulates a power loss after every call of a sequence of saves, with many combinations of the unsynced changes that
// reached the disk. The newest acknowledged checkpoint must be complete, and no partial checkpoint may be visible. Each
// sync must be necessary: without it, some power loss loses data.
#include <gtest/gtest.h>
#include <iostream>
#include <map>
#include <random>
#include <set>

#include "checkpoint/checkpoint_directory.h"
#include "checkpoint/save.h"
#include "checkpoint/verify.h"
#include "tests/checkpoint/recording_file_system.h"
#include "tests/checkpoint/support.h"

namespace aliquot {
namespace {

using test::Disk;
using test::DiskCall;
using test::DiskLog;
using test::Shard;
using test::WriteOutcome;

constexpr int kRanks = 2;
constexpr size_t kNone = SIZE_MAX;
constexpr int kRandomOutcomes = 12;
constexpr const char* kFolder = "runs/a";  // two directories that the first save creates

struct Save {
  int64_t step;
  uint64_t seed;  // determines the contents of the saved tensors
};

/// Runs the saves in sequence on two ranks and returns their calls to the file system.
std::vector<DiskCall> record(const std::vector<Save>& saves, int keep_count) {
  test::TemporaryDirectory directory;
  DiskLog log(directory.path());
  const auto failures = test::on_ranks(kRanks, [&](Communicator& communicator) {
    test::RecordingFileSystem file_system(log, communicator.rank());
    Shard shard(test::small_tensors(), kRanks, communicator.rank(), test::Partition::kBlocks, 3);
    for (const Save& each : saves) {
      shard.fill(each.seed);
      shard.state().step = each.step;
      SaveOptions options;
      options.file_system = &file_system;
      options.keep_count = keep_count;
      options.direct_io = false;
      save(shard.state(), communicator, directory.path() / kFolder, options);
      if (communicator.rank() == 0) log.acknowledge(each.step, each.seed);
      communicator.gather_objects("acknowledged");
    }
  });
  EXPECT_EQ(failures, std::vector<std::string>(kRanks));
  return log.calls();
}

/// Returns the seed, from 1 to 9, from which all tensors of the checkpoint were generated, or 0 if there is none.
uint64_t seed_of(const CheckpointReader& reader) {
  for (uint64_t seed = 1; seed < 10; ++seed) {
    bool all = true;
    for (const test::TestTensor& shape : test::small_tensors()) {
      const auto expected = test::full_tensor_bytes(shape, seed);
      std::vector<std::byte> bytes(expected.size());
      for (const TensorEntry& tensor : reader.manifest().tensors) {
        if (tensor.path == shape.path) reader.read(bytes, tensor.file_offset);
      }
      all = all && bytes == expected;
    }
    if (all) return seed;
  }
  return 0;
}

/// Restores the disk. Returns the step and seed of each checkpoint that a restart finds. The seed is 0 if the
/// checkpoint is invalid.
std::map<int64_t, uint64_t> recover(const Disk& disk) {
  test::TemporaryDirectory directory(std::filesystem::exists("/dev/shm") ? "/dev/shm"
                                                                         : std::filesystem::temp_directory_path());
  disk.restore(directory.path());
  const auto folder = directory.path() / kFolder;
  sweep_leftovers(folder);
  std::map<int64_t, uint64_t> found;
  for (const FoundCheckpoint& each : list_checkpoints(folder)) {
    try {
      found[each.step] = seed_of(open_verified(each.path));
    } catch (const Error&) {
      found[each.step] = 0;
    }
  }
  return found;
}

/// Caches the results of recover(), which is called only once for disks with equal contents.
class RecoveryCache {
 public:
  const std::map<int64_t, uint64_t>& operator()(const Disk& disk) {
    const std::string key = disk.fingerprint();
    const auto cached = results_.find(key);
    return cached != results_.end() ? cached->second : results_.emplace(key, recover(disk)).first->second;
  }
  size_t different_count() const { return results_.size(); }

 private:
  std::map<std::string, std::map<int64_t, uint64_t>> results_;
};

/// Checks `found`, the checkpoints that a restart finds if the power fails right after the first `count` calls. Returns
/// the violated guarantee, or an empty string if there is none.
std::string find_violation(const std::vector<DiskCall>& calls, size_t count, const std::map<int64_t, uint64_t>& found) {
  const DiskCall* acknowledged = nullptr;
  std::map<int64_t, std::set<uint64_t>> possible;
  for (size_t i = 0; i < calls.size(); ++i) {
    if (calls[i].kind != DiskCall::Kind::kAcknowledge) continue;
    possible[calls[i].step].insert(calls[i].seed);
    if (i < count) acknowledged = &calls[i];
  }
  for (const auto& [step, seed] : found) {
    if (!possible[step].contains(seed)) return "step " + std::to_string(step) + " is visible but not valid";
  }
  if (acknowledged == nullptr) return {};
  if (found.empty() || found.rbegin()->first < acknowledged->step)
    return "step " + std::to_string(acknowledged->step) + " was acknowledged but is missing";
  const auto same = found.find(acknowledged->step);
  if (same != found.end() && same->second < acknowledged->seed)
    return "step " + std::to_string(acknowledged->step) + " has its contents from before an acknowledged replacement";
  return {};
}

/// Returns the outcomes to try for unsynced changes: all lost; all kept; only names or only contents kept; all torn; a
/// single change lost or kept; and random outcomes.
std::vector<std::function<WriteOutcome(size_t)>> write_outcomes(const std::vector<DiskCall>& calls,
                                                                const std::vector<size_t>& open, uint64_t seed) {
  const auto names = [&calls](size_t i) { return calls[i].kind == DiskCall::Kind::kEntries; };
  std::vector<std::function<WriteOutcome(size_t)>> all;
  all.emplace_back([](size_t) { return WriteOutcome::kLost; });
  if (open.empty()) return all;
  all.emplace_back([](size_t) { return WriteOutcome::kWritten; });
  all.emplace_back([names](size_t i) { return names(i) ? WriteOutcome::kWritten : WriteOutcome::kLost; });
  all.emplace_back([names](size_t i) { return names(i) ? WriteOutcome::kLost : WriteOutcome::kWritten; });
  all.emplace_back([](size_t) { return WriteOutcome::kTorn; });
  for (const size_t one : open) {
    all.emplace_back([one](size_t i) { return i == one ? WriteOutcome::kLost : WriteOutcome::kWritten; });
    all.emplace_back([one](size_t i) { return i == one ? WriteOutcome::kWritten : WriteOutcome::kLost; });
  }
  for (uint64_t n = 0; n < kRandomOutcomes; ++n) {
    all.emplace_back([key = seed * kRandomOutcomes + n](size_t i) {
      std::mt19937_64 random(key * 1'000'003 + i);
      return static_cast<WriteOutcome>(random() % 3);
    });
  }
  return all;
}

struct Replay {
  size_t states = 0;
  std::string violation;  // the first violated guarantee, or empty
};

/// Simulates a power loss after each call, as if the sync with the index `ignored` had not happened.
Replay replay(const std::vector<DiskCall>& calls, size_t ignored, RecoveryCache& recovery_cache) {
  Replay result;
  for (size_t count = 0; count <= calls.size(); ++count) {
    for (const auto& outcome : write_outcomes(calls, test::unsynced_changes(calls, count, ignored), count)) {
      ++result.states;
      const auto& found = recovery_cache(test::after_power_loss(calls, count, ignored, outcome));
      const std::string violation = find_violation(calls, count, found);
      if (violation.empty()) continue;
      result.violation = "after call " + std::to_string(count) + ": " + violation;
      return result;
    }
  }
  return result;
}

/// Returns the indices of all syncs in `calls`.
std::vector<size_t> syncs(const std::vector<DiskCall>& calls) {
  std::vector<size_t> result;
  for (size_t i = 0; i < calls.size(); ++i) {
    if (calls[i].kind == DiskCall::Kind::kSync) result.push_back(i);
  }
  return result;
}

/// Expects that every power loss is recoverable. Then leaves out each sync in turn, and returns the number of syncs
/// whose omission loses data.
size_t check_every_power_loss(const char* name, const std::vector<DiskCall>& calls) {
  RecoveryCache recovery_cache;
  const Replay complete = replay(calls, kNone, recovery_cache);
  EXPECT_EQ(complete.violation, "") << name;
  std::cout << name << ": " << calls.size() << " calls, " << complete.states << " states after a power loss ("
            << recovery_cache.different_count() << " different), all recovered\n";
  size_t needed = 0;
  for (const size_t sync : syncs(calls)) {
    const Replay without = replay(calls, sync, recovery_cache);
    needed += without.violation.empty() ? 0 : 1;
    std::cout << "  without sync " << sync << " of rank " << calls[sync].rank << ": "
              << (without.violation.empty() ? "nothing is lost" : without.violation) << "\n";
  }
  return needed;
}

TEST(PowerLoss, SavesAndAReplacementRecoverAndNeedEverySync) {
  const auto calls = record({{1, 1}, {2, 2}, {2, 3}}, 0);
  // Each save syncs state.h5 on both ranks, the manifest, the checkpoint's directory and its parent. The first save
  // also syncs the parents of two new directories.
  ASSERT_EQ(syncs(calls).size(), 3 * 5 + 2u);
  EXPECT_EQ(check_every_power_loss("saves and a replacement", calls), syncs(calls).size());
}

TEST(PowerLoss, PruningLosesNothingAndNeedsEverySync) {
  const auto calls = record({{1, 1}, {2, 2}, {3, 3}}, 1);
  ASSERT_EQ(syncs(calls).size(), 3 * 5 + 2 + 2u);
  EXPECT_EQ(check_every_power_loss("saves with pruning", calls), syncs(calls).size());
}

/// Tests the model of the disk. A sync makes only the changes of the same rank durable.
TEST(PowerLoss, TheDiskModelMayLoseUnsyncedChanges) {
  test::TemporaryDirectory directory;
  DiskLog log(directory.path());
  test::RecordingFileSystem one(log, 0), other(log, 1);
  const std::string text = "12345678";
  {
    const Directory root = Directory::open(one, directory.path());
    File file = root.create("a");
    file.write(std::as_bytes(std::span(text)), 0);
    Directory::open(other, directory.path()).open_for_writing("a", false).write(std::as_bytes(std::span(text)), 8);
    file.sync();
    root.sync();
  }
  const auto lost = [](size_t) { return WriteOutcome::kLost; };
  const auto contents = [&](size_t count, size_t ignored, const std::function<WriteOutcome(size_t)>& outcome) {
    const Disk disk = test::after_power_loss(log.calls(), count, ignored, outcome);
    const auto& names = disk.directories.at(0);
    return names.contains("a") ? disk.files.contains(names.at("a")) ? disk.files.at(names.at("a")) : "" : "none";
  };
  ASSERT_EQ(log.calls().size(), 5u);  // create, write, write of the other rank, two syncs
  EXPECT_EQ(contents(5, kNone, lost), text) << "the write of the other rank was not synced";
  EXPECT_EQ(contents(5, 3, lost), "");
  EXPECT_EQ(contents(5, 4, lost), "none");
  EXPECT_EQ(contents(3, kNone, [](size_t) { return WriteOutcome::kWritten; }), text + text);
  EXPECT_EQ(contents(2, kNone, [](size_t) { return WriteOutcome::kTorn; }), "1234");
}

}  // namespace
}  // namespace aliquot
