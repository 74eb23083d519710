#include "sharding/mpi/bootstrap_mpi.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <deque>
#include <fmt/format.h>
#include <numeric>
#include <sstream>

#include "sharding/comm/abort_reason.h"
#include "sharding/comm/collective_purpose.h"
#include "sharding/comm/communicator.h"
#include "sharding/groups.h"

namespace aliquot {
namespace {

constexpr int kToRootTag = 1, kFromRootTag = 2;

// The first byte of a message from rank 0. It indicates whether the gathered strings or the missing ranks follow.
constexpr char kResult = 's', kMissing = 'm';

// A frame is a string with its length before it. A rank sends its purpose and its own string as two frames. The frames
// of all ranks, concatenated, are the result.
constexpr int kFramesPerRank = 2;
std::string add_length_prefix(std::string_view own) {
  const uint64_t length = own.size();
  std::string frame(reinterpret_cast<const char*>(&length), sizeof length);
  return frame.append(own);
}

std::vector<std::string> split_frames(std::string_view total, int count) {
  std::vector<std::string> parts(static_cast<std::size_t>(count));
  for (std::string& part : parts) {
    uint64_t length = 0;
    const bool has_length = total.size() >= sizeof length;
    if (has_length) std::memcpy(&length, total.data(), sizeof length);
    if (!has_length || total.size() - sizeof length < length) throw FaultError("a gathered message is truncated");
    part = total.substr(sizeof length, length);
    total.remove_prefix(sizeof length + length);
  }
  return parts;
}

/// Bytes that MPI reads or writes. The destructor leaks them if the requests are not complete.
struct PendingMessage {
  PendingMessage() = default;
  PendingMessage(const PendingMessage&) = delete;
  PendingMessage& operator=(const PendingMessage&) = delete;
  ~PendingMessage() {
    if (!requests.empty()) (void)bytes.release();
  }
  void send(const MpiEnvelope& to) { requests.send(to, bytes->data(), static_cast<int64_t>(bytes->size())); }

  std::unique_ptr<std::string> bytes = std::make_unique<std::string>();
  MpiRequests requests;
};

}  // namespace

// A wait for other ranks. Throws at the deadline or after an abort.
class MpiBootstrap::Wait {
 public:
  explicit Wait(MpiBootstrap& bootstrap)
      : bootstrap_(bootstrap), missing_(bootstrap.rank_count_, bootstrap.rank_ == 0) {
    missing_[0] = bootstrap.rank_ != 0;
    // Rank 0 can name all missing ranks, so its timeout is the shortest and it reports first.
    limit_seconds_ = bootstrap.timeout_seconds_ + (bootstrap.rank_ == 0 ? 0.0 : 0.5);
    next_update_seconds_ = update_period_seconds();
  }

  void pause() {
    backoff_.pause();
    if (!backoff_.slow_checks_due()) return;
    std::string why;
    if (bootstrap_.aborted(&why)) throw_abort(why);
    if (waited_seconds() > limit_seconds_) throw_timeout();
  }

  // The following functions run on rank 0, which sends the list of missing ranks to the other ranks. Otherwise, if rank
  // 0 arrived late, the others would report only rank 0 as missing.
  void arrived(int rank) {
    missing_[rank] = false;
    has_update_ = true;
  }
  bool update_due() {
    if (!has_update_ || waited_seconds() < next_update_seconds_) return false;
    // The time between updates doubles. With a constant time, rank 0 would send an update to all ranks for nearly every
    // rank that arrives, which takes too long with thousands of ranks.
    next_update_seconds_ = 2 * std::max(waited_seconds(), update_period_seconds());
    has_update_ = false;
    return true;
  }
  bool is_missing(int rank) const { return missing_[rank]; }
  std::string missing_ranks_message() const {
    std::string ranks(1, kMissing);
    for (int r = 0; r < bootstrap_.rank_count_; ++r) {
      if (!missing_[r]) continue;
      const int first = r;
      while (r + 1 < bootstrap_.rank_count_ && missing_[r + 1]) ++r;
      ranks += fmt::format("{} {} ", first, r);  // the first and the last rank of a range
    }
    return ranks;
  }

  // Records the ranks of a missing_ranks_message() that another rank sent.
  void set_missing(const std::string& message) {
    missing_.assign(missing_.size(), false);
    std::istringstream ranks(message.substr(1));
    for (int first = 0, last = 0; ranks >> first >> last;)
      std::fill(missing_.begin() + first, missing_.begin() + last + 1, true);
  }

 private:
  double update_period_seconds() const { return std::min(0.25, bootstrap_.timeout_seconds_ / 4); }
  double waited_seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - started_).count();
  }

  [[noreturn]] void throw_timeout() {
    std::vector<MissingRank> missing;
    for (int r = 0; r < bootstrap_.rank_count_; ++r) {
      if (missing_[r]) missing.push_back({bootstrap_.global_rank(r), bootstrap_.last_operation(r)});
    }
    const std::string why =
        bootstrap_timeout_text(bootstrap_.global_rank(bootstrap_.rank_), bootstrap_.timeout_seconds_, missing);
    bootstrap_.abort(why);
    throw_abort(why);
  }

  MpiBootstrap& bootstrap_;
  std::vector<bool> missing_;
  bool has_update_ = true;
  MpiBackoff backoff_;
  std::chrono::steady_clock::time_point started_ = std::chrono::steady_clock::now();
  double limit_seconds_, next_update_seconds_;
};

MpiBootstrap::MpiBootstrap(MPI_Comm parent, double timeout_seconds)
    : comm_(MpiComm::duplicate(parent)),
      channels_{std::make_shared<AbortChannel>(comm_.get())},
      timeout_seconds_(timeout_seconds),
      rank_(comm_.rank()),
      rank_count_(comm_.rank_count()),
      global_ranks_(static_cast<std::size_t>(rank_count_)) {
  std::iota(global_ranks_.begin(), global_ranks_.end(), 0);
}

MpiBootstrap::MpiBootstrap(const MpiBootstrap& parent, const MpiComm& group)
    : MpiBootstrap(group.get(), parent.timeout_seconds_) {
  channels_.insert(channels_.end(), parent.channels_.begin(), parent.channels_.end());
  const auto global_ranks = all_gather(std::to_string(parent.global_rank(parent.rank_)));
  std::transform(global_ranks.begin(), global_ranks.end(), global_ranks_.begin(),
                 [](const std::string& rank) { return std::stoi(rank); });
}

bool MpiBootstrap::aborted(std::string* why) const {
  return std::any_of(channels_.begin(), channels_.end(), [why](const auto& channel) { return channel->posted(why); });
}

std::vector<std::string> MpiBootstrap::all_gather(std::string_view own) {
  std::string why;
  if (aborted(&why)) throw_abort(why);
  check_size_limit(own.size());
  std::string frames = add_length_prefix(collective_purpose().what) + add_length_prefix(own);
  const std::string reply =
      rank_ == 0 ? gather_at_root(std::move(frames)) : send_to_root_and_receive(std::move(frames));
  std::vector<std::string> parts = split_frames(std::string_view(reply).substr(1), kFramesPerRank * rank_count_);
  for (int r = 0; r < rank_count_; ++r) parts[r] = std::move(parts[kFramesPerRank * r + 1]);
  parts.resize(static_cast<std::size_t>(rank_count_));
  return parts;
}

// Throws on all ranks if the purpose in `frames`, which rank `source` sent, is not that of this rank.
void MpiBootstrap::check_same_purpose(int source, const std::string& frames) {
  const std::string own(collective_purpose().what), theirs = split_frames(frames, kFramesPerRank).front();
  if (theirs == own) return;
  const std::string why = different_purposes_text(global_rank(rank_), own, global_rank(source), theirs);
  abort(why);
  throw_abort(why);
}

void MpiBootstrap::check_size_limit(std::size_t size_bytes) {
  constexpr std::size_t kFrameBytes = 64;
  if (size_bytes + kFrameBytes < static_cast<std::size_t>(MpiRequests::kMaxMessageBytes)) return;
  const std::string why = fmt::format("a bootstrap message has {} bytes: expected less than 1 GiB", size_bytes);
  abort(why);
  throw FaultError(why);
}

// Receives a matching message completely and returns true, if one has arrived.
bool MpiBootstrap::try_receive(const MpiEnvelope& from, Wait& wait, std::string* bytes, int* source) {
  int found = 0, length = 0;
  MPI_Message message = MPI_MESSAGE_NULL;
  MPI_Status status;
  check_mpi(MPI_Improbe(from.rank, from.tag, from.comm, &found, &message, &status), "MPI_Improbe");
  if (found == 0) return false;
  check_mpi(MPI_Get_count(&status, MPI_BYTE, &length), "MPI_Get_count");
  PendingMessage incoming;
  incoming.bytes->resize(static_cast<std::size_t>(length));
  incoming.requests.receive(message, status.MPI_SOURCE, incoming.bytes->data(), length);
  while (!incoming.requests.done()) wait.pause();
  *bytes = std::move(*incoming.bytes);
  *source = status.MPI_SOURCE;
  return true;
}

std::string MpiBootstrap::gather_at_root(std::string own_frames) {
  Wait wait(*this);
  std::vector<std::string> frames(static_cast<std::size_t>(rank_count_));
  frames[0] = std::move(own_frames);
  std::deque<PendingMessage> updates;
  std::string bytes;
  for (int missing_count = rank_count_ - 1; missing_count > 0;) {
    int source = 0;
    if (try_receive({comm_.get(), MPI_ANY_SOURCE, kToRootTag}, wait, &bytes, &source)) {
      check_same_purpose(source, bytes);
      frames[source] = std::move(bytes);
      wait.arrived(source);
      --missing_count;
      continue;
    }
    wait.pause();
    if (!wait.update_due()) continue;
    *updates.emplace_back().bytes = wait.missing_ranks_message();
    for (int r = 1; r < rank_count_; ++r) {
      if (!wait.is_missing(r)) updates.back().send({comm_.get(), r, kFromRootTag});
    }
  }
  PendingMessage total;
  total.bytes->assign(1, kResult);
  for (const std::string& part : frames) *total.bytes += part;
  check_size_limit(total.bytes->size());
  for (int r = 1; r < rank_count_; ++r) total.send({comm_.get(), r, kFromRootTag});
  while (!total.requests.done()) wait.pause();
  for (PendingMessage& update : updates) {
    while (!update.requests.done()) wait.pause();
  }
  return std::move(*total.bytes);
}

std::string MpiBootstrap::send_to_root_and_receive(std::string frames) {
  Wait wait(*this);
  PendingMessage up;
  *up.bytes = std::move(frames);
  up.send({comm_.get(), 0, kToRootTag});
  std::string reply;
  for (int source = 0; reply.empty() || reply.front() != kResult;) {
    if (!try_receive({comm_.get(), 0, kFromRootTag}, wait, &reply, &source)) {
      wait.pause();
    } else if (reply.front() == kMissing) {
      wait.set_missing(reply);
    }
  }
  while (!up.requests.done()) wait.pause();
  return reply;
}

std::unique_ptr<Bootstrap> MpiBootstrap::split(int color, int key) { return split_mpi(color, key); }

std::unique_ptr<MpiBootstrap> MpiBootstrap::split_mpi(int color, int key) {
  // MPI_Comm_split() alone would wait forever for a missing rank, and it rejects negative colors.
  const RankGroup group = agree_on_group(*this, color, key);
  return make_group(MpiComm::split(comm_.get(), group.members.front(), group.rank));
}

std::unique_ptr<MpiBootstrap> MpiBootstrap::split_by_node() {
  all_gather("split by node");
  return make_group(MpiComm::split_by_node(comm_.get()));
}

std::unique_ptr<MpiBootstrap> MpiBootstrap::make_group(const MpiComm& group) const {
  return std::unique_ptr<MpiBootstrap>(new MpiBootstrap(*this, group));
}

}  // namespace aliquot
