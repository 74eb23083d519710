#include "tests/support/bootstrap_processes.h"

#include <array>
#include <chrono>
#include <cstring>
#include <fmt/format.h>
#include <stdexcept>
#include <sys/mman.h>

#include "kernels/system/shared_counter.h"
#include "sharding/comm/abort_reason.h"
#include "sharding/comm/board.h"
#include "sharding/comm/collective_purpose.h"
#include "sharding/groups.h"

namespace aliquot {
namespace {

constexpr int kMaxRanks = 8, kMaxGroups = 128;
constexpr std::size_t kMaxBytes = 256 * 1024;

/// The message of one rank in the current round.
struct Slot {
  SharedCounter sent_round, received_round;
  std::size_t size_bytes;
  std::array<char, kMaxBytes> bytes;
};

struct GroupSlots {
  std::array<Slot, kMaxRanks> ranks;
};

}  // namespace

struct ProcessesBootstrapStore::Shared {
  AbortNotice notice;
  std::atomic<int> group_count{1};
  std::array<GroupSlots, kMaxGroups> groups;  // unused pages take no memory
};

namespace {

class ProcessesBootstrap final : public Bootstrap {
 public:
  ProcessesBootstrap(ProcessesBootstrapStore::Shared& shared, int group, int rank, int rank_count,
                     double timeout_seconds)
      : shared_(shared), group_(group), rank_(rank), rank_count_(rank_count), timeout_seconds_(timeout_seconds) {}

  int rank() const override { return rank_; }
  int rank_count() const override { return rank_count_; }

  std::vector<std::string> all_gather(std::string_view own) override {
    if (own.size() > kMaxBytes) throw std::length_error("a test bootstrap exchanges at most 256 KiB per rank");
    // Waits until all ranks have read the messages of the previous round.
    for (int r = 0; r < rank_count_; ++r) wait(r, slot(r).received_round, round_);
    ++round_;
    slot(rank_).size_bytes = own.size();
    std::memcpy(slot(rank_).bytes.data(), own.data(), own.size());
    slot(rank_).sent_round.raise_to(round_);
    std::vector<std::string> all;
    for (int r = 0; r < rank_count_; ++r) {
      wait(r, slot(r).sent_round, round_);
      all.emplace_back(slot(r).bytes.data(), slot(r).size_bytes);
    }
    slot(rank_).received_round.raise_to(round_);
    return all;
  }

  std::unique_ptr<Bootstrap> split(int color, int key) override {
    const RankGroup group = agree_on_group(*this, color, key);
    const auto numbers = all_gather(group.rank == 0 ? std::to_string(shared_.group_count.fetch_add(1)) : "");
    const int number = std::stoi(numbers[group.members.front()]);
    if (number >= kMaxGroups) throw std::length_error("a test bootstrap has at most 128 groups");
    return std::make_unique<ProcessesBootstrap>(shared_, number, group.rank, static_cast<int>(group.members.size()),
                                                timeout_seconds_);
  }

  void abort(std::string_view why) noexcept override { shared_.notice.post(why); }
  bool aborted(std::string* why) const override {
    if (!shared_.notice.posted()) return false;
    if (why != nullptr) *why = shared_.notice.why();
    return true;
  }

 private:
  Slot& slot(int rank) const {
    return shared_.groups[static_cast<std::size_t>(group_)].ranks[static_cast<std::size_t>(rank)];
  }

  void wait(int rank, const SharedCounter& counter, uint64_t round) {
    constexpr int64_t kPollNanoseconds = 20'000'000;
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::duration<double>(timeout_seconds_);
    while (!counter.wait(round, kPollNanoseconds)) {
      if (shared_.notice.posted()) throw_abort(shared_.notice.why());
      if (std::chrono::steady_clock::now() < deadline) continue;
      const std::string why = bootstrap_timeout_text(rank_, timeout_seconds_, {{rank}});
      abort(why);
      throw_abort(why);
    }
  }

  ProcessesBootstrapStore::Shared& shared_;
  int group_, rank_, rank_count_;
  double timeout_seconds_;
  uint64_t round_ = 0;
};

}  // namespace

ProcessesBootstrapStore::ProcessesBootstrapStore(int rank_count, double timeout_seconds)
    : rank_count_(rank_count), timeout_seconds_(timeout_seconds) {
  if (rank_count > kMaxRanks) throw std::length_error("a test bootstrap has at most 8 ranks");
  void* memory =
      mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  // Zeroed memory is a valid Shared object, except for group_count, which must include group 0.
  shared_ = static_cast<Shared*>(memory);
  shared_->group_count.store(1);
}

ProcessesBootstrapStore::~ProcessesBootstrapStore() { munmap(shared_, sizeof(Shared)); }

std::unique_ptr<Bootstrap> ProcessesBootstrapStore::bootstrap(int rank) {
  return std::make_unique<ProcessesBootstrap>(*shared_, 0, rank, rank_count_, timeout_seconds_);
}

void ProcessesBootstrapStore::abort(const char* why) noexcept { shared_->notice.post(why); }

}  // namespace aliquot
