#include "sharding/mpi/exchange_mpi.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <deque>
#include <fmt/format.h>
#include <numeric>
#include <sstream>

#include "sharding/comm/communicator.h"
#include "sharding/comm/exchange_purpose.h"
#include "sharding/groups.h"

namespace aliquot {
namespace {

constexpr int kUpTag = 1, kDownTag = 2;

// What a message of the first rank begins with: what all said follows, or whom it still waits for.
constexpr char kSaid = 's', kMissing = 'm';

// What one rank says, with its length before it; what all say is these, one after the other, in one message.
std::string framed(std::string_view own) {
  const uint64_t length = own.size();
  std::string frame(reinterpret_cast<const char*>(&length), sizeof length);
  return frame.append(own);
}

std::vector<std::string> cut(std::string_view total, int count) {
  std::vector<std::string> parts(static_cast<std::size_t>(count));
  for (std::string& part : parts) {
    uint64_t length = 0;
    const bool has_length = total.size() >= sizeof length;
    if (has_length) std::memcpy(&length, total.data(), sizeof length);
    if (!has_length || total.size() - sizeof length < length)
      throw FaultError("what the ranks told each other was cut short on its way");
    part = total.substr(sizeof length, length);
    total.remove_prefix(sizeof length + length);
  }
  return parts;
}

/// Bytes that MPI reads or writes. What is still under way when a wait is given up keeps them for ever.
struct UnderWay {
  UnderWay() = default;
  UnderWay(const UnderWay&) = delete;
  UnderWay& operator=(const UnderWay&) = delete;
  ~UnderWay() {
    if (!requests.empty()) (void)bytes.release();
  }
  void send(const MpiEnvelope& to) { requests.send(to, bytes->data(), static_cast<int64_t>(bytes->size())); }

  std::unique_ptr<std::string> bytes = std::make_unique<std::string>();
  MpiRequests requests;
};

}  // namespace

// One wait for others: with a deadline, leaving when somebody aborts.
class MpiExchange::Wait {
 public:
  explicit Wait(MpiExchange& exchange) : exchange_(exchange), missing_(exchange.rank_count_, exchange.rank_ == 0) {
    missing_[0] = exchange.rank_ != 0;
    // The first rank knows best who is missing, so the others let it speak first.
    patience_seconds_ = exchange.timeout_seconds_ + (exchange.rank_ == 0 ? 0.0 : 0.5);
    next_word_seconds_ = word_period_seconds();
  }

  void pause() {
    backoff_.pause();
    if (!backoff_.look_around()) return;
    std::string why;
    if (exchange_.aborted(&why)) throw CommunicationError(why);
    if (waited_seconds() > patience_seconds_) give_up();
  }

  // On the first rank. The others are told whom it waits for: it may have come long after them, and they would take it
  // for the one that is missing.
  void arrived(int rank) {
    missing_[rank] = false;
    has_news_ = true;
  }
  bool time_for_a_word() {
    if (!has_news_ || waited_seconds() < next_word_seconds_) return false;
    next_word_seconds_ = waited_seconds() + word_period_seconds();
    has_news_ = false;
    return true;
  }
  bool misses(int rank) const { return missing_[rank]; }
  std::string word() const {
    std::string ranks(1, kMissing);
    for (int r = 0; r < exchange_.rank_count_; ++r) {
      if (missing_[r]) ranks += fmt::format("{} ", r);
    }
    return ranks;
  }

  // On the others.
  void hear(const std::string& word) {
    missing_.assign(missing_.size(), false);
    std::istringstream ranks(word.substr(1));
    for (int rank = 0; ranks >> rank;) missing_[rank] = true;
  }

 private:
  double word_period_seconds() const { return std::min(0.25, exchange_.timeout_seconds_ / 4); }
  double waited_seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - started_).count();
  }

  [[noreturn]] void give_up() {
    std::vector<int> missing;
    for (int r = 0; r < exchange_.rank_count_; ++r) {
      if (missing_[r]) missing.push_back(exchange_.name_of(r));
    }
    const std::string why =
        exchange_deadline_text(exchange_.name_of(exchange_.rank_), exchange_.timeout_seconds_, missing);
    exchange_.abort(why);
    throw CommunicationError(why);
  }

  MpiExchange& exchange_;
  std::vector<bool> missing_;
  bool has_news_ = true;
  MpiBackoff backoff_;
  std::chrono::steady_clock::time_point started_ = std::chrono::steady_clock::now();
  double patience_seconds_, next_word_seconds_;
};

MpiExchange::MpiExchange(MPI_Comm parent, double timeout_seconds)
    : comm_(MpiComm::duplicate(parent)),
      channels_{std::make_shared<AbortChannel>(comm_.get())},
      timeout_seconds_(timeout_seconds),
      rank_(comm_.rank()),
      rank_count_(comm_.rank_count()),
      names_(static_cast<std::size_t>(rank_count_)) {
  std::iota(names_.begin(), names_.end(), 0);
}

MpiExchange::MpiExchange(const MpiExchange& whole, const MpiComm& group)
    : MpiExchange(group.get(), whole.timeout_seconds_) {
  channels_.insert(channels_.end(), whole.channels_.begin(), whole.channels_.end());
  const auto names = all(std::to_string(whole.name_of(whole.rank_)));
  std::transform(names.begin(), names.end(), names_.begin(), [](const std::string& name) { return std::stoi(name); });
}

bool MpiExchange::aborted(std::string* why) const {
  return std::any_of(channels_.begin(), channels_.end(), [why](const auto& channel) { return channel->posted(why); });
}

std::vector<std::string> MpiExchange::all(std::string_view own) {
  std::string why;
  if (aborted(&why)) throw CommunicationError(why);
  refuse_beyond_limit(own.size());
  const std::string told = rank_ == 0 ? collect_and_tell(framed(own)) : tell_and_hear(framed(own));
  return cut(std::string_view(told).substr(1), rank_count_);
}

void MpiExchange::refuse_beyond_limit(std::size_t size_bytes) {
  constexpr std::size_t kFrameBytes = 64;
  if (size_bytes + kFrameBytes < static_cast<std::size_t>(MpiRequests::kMaxMessageBytes)) return;
  const std::string why = fmt::format("ranks exchange {} bytes at once where 1 GiB is the most", size_bytes);
  abort(why);
  throw FaultError(why);
}

// The next message of that tag, if one has come: then all of it.
bool MpiExchange::hear(const MpiEnvelope& from, Wait& wait, std::string* bytes, int* source) {
  int found = 0, length = 0;
  MPI_Message message = MPI_MESSAGE_NULL;
  MPI_Status status;
  check_mpi(MPI_Improbe(from.rank, from.tag, from.comm, &found, &message, &status), "MPI_Improbe");
  if (found == 0) return false;
  check_mpi(MPI_Get_count(&status, MPI_BYTE, &length), "MPI_Get_count");
  UnderWay incoming;
  incoming.bytes->resize(static_cast<std::size_t>(length));
  incoming.requests.receive(message, status.MPI_SOURCE, incoming.bytes->data(), length);
  while (!incoming.requests.done()) wait.pause();
  *bytes = std::move(*incoming.bytes);
  *source = status.MPI_SOURCE;
  return true;
}

std::string MpiExchange::collect_and_tell(std::string own_frame) {
  Wait wait(*this);
  std::vector<std::string> frames(static_cast<std::size_t>(rank_count_));
  frames[0] = std::move(own_frame);
  std::deque<UnderWay> words;
  std::string bytes;
  for (int missing_count = rank_count_ - 1; missing_count > 0;) {
    int source = 0;
    if (hear({comm_.get(), MPI_ANY_SOURCE, kUpTag}, wait, &bytes, &source)) {
      frames[source] = std::move(bytes);
      wait.arrived(source);
      --missing_count;
      continue;
    }
    wait.pause();
    if (!wait.time_for_a_word()) continue;
    *words.emplace_back().bytes = wait.word();
    for (int r = 1; r < rank_count_; ++r) {
      if (!wait.misses(r)) words.back().send({comm_.get(), r, kDownTag});
    }
  }
  UnderWay total;
  total.bytes->assign(1, kSaid);
  for (const std::string& part : frames) *total.bytes += part;
  refuse_beyond_limit(total.bytes->size());
  for (int r = 1; r < rank_count_; ++r) total.send({comm_.get(), r, kDownTag});
  while (!total.requests.done()) wait.pause();
  for (UnderWay& word : words) {
    while (!word.requests.done()) wait.pause();
  }
  return std::move(*total.bytes);
}

std::string MpiExchange::tell_and_hear(std::string frame) {
  Wait wait(*this);
  UnderWay up;
  *up.bytes = std::move(frame);
  up.send({comm_.get(), 0, kUpTag});
  std::string told;
  for (int source = 0; told.empty() || told.front() != kSaid;) {
    if (!hear({comm_.get(), 0, kDownTag}, wait, &told, &source)) {
      wait.pause();
    } else if (told.front() == kMissing) {
      wait.hear(told);
    }
  }
  while (!up.requests.done()) wait.pause();
  return told;
}

std::unique_ptr<Exchange> MpiExchange::split(int color, int key) { return split_mpi(color, key); }

std::unique_ptr<MpiExchange> MpiExchange::split_mpi(int color, int key) {
  // MPI's own call would wait for a missing rank for ever, and it refuses colors below 0.
  const Group group = agree_on_group(*this, color, key);
  return part(MpiComm::split(comm_.get(), group.members.front(), group.rank));
}

std::unique_ptr<MpiExchange> MpiExchange::split_by_node() {
  all("split by node");
  return part(MpiComm::split_by_node(comm_.get()));
}

std::unique_ptr<MpiExchange> MpiExchange::part(const MpiComm& group) const {
  return std::unique_ptr<MpiExchange>(new MpiExchange(*this, group));
}

}  // namespace aliquot
