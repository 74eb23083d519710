#include "sharding/exchange_mpi.h"

#include <chrono>
#include <cstring>
#include <fmt/format.h>

#include "sharding/communicator.h"

namespace aliquot {
namespace {

constexpr int kUpTag = 1, kDownTag = 2;

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
    std::memcpy(&length, total.data(), sizeof length);
    part = total.substr(sizeof length, length);
    total.remove_prefix(sizeof length + length);
  }
  return parts;
}

// The next message of that tag, if it has come.
bool try_receive(MPI_Comm comm, int rank, int tag, std::string* bytes, int* source) {
  int found = 0, length = 0;
  MPI_Message message = MPI_MESSAGE_NULL;
  MPI_Status status;
  check_mpi(MPI_Improbe(rank, tag, comm, &found, &message, &status), "MPI_Improbe");
  if (found == 0) return false;
  check_mpi(MPI_Get_count(&status, MPI_BYTE, &length), "MPI_Get_count");
  bytes->resize(static_cast<std::size_t>(length));
  *source = status.MPI_SOURCE;
  check_mpi(MPI_Mrecv(bytes->data(), length, MPI_BYTE, &message, MPI_STATUS_IGNORE), "MPI_Mrecv");
  return true;
}

}  // namespace

// One wait for others: with a deadline, leaving when somebody aborts.
class MpiExchange::Wait {
 public:
  explicit Wait(MpiExchange& exchange) : exchange_(exchange), arrived_(exchange.rank_count_, false) {
    arrived_[exchange.rank_] = true;
    // The first rank knows best who is missing, so the others let it speak first.
    patience_ = exchange.timeout_seconds_ + (exchange.rank_ == 0 ? 0.0 : 0.5);
  }

  void arrived(int rank) { arrived_[rank] = true; }

  void pause() {
    backoff_.pause();
    if (!backoff_.look_around()) return;
    exchange_.aborts_->throw_if_posted();
    const std::chrono::duration<double> waited = std::chrono::steady_clock::now() - started_;
    if (waited.count() > patience_) give_up();
  }

 private:
  [[noreturn]] void give_up() {
    std::string missing;
    if (exchange_.rank_ != 0) missing = "; rank 0 never arrived";
    for (int r = 0; r < exchange_.rank_count_ && exchange_.rank_ == 0; ++r) {
      if (!arrived_[r]) missing += fmt::format("; rank {} never arrived", r);
    }
    const std::string why = fmt::format("rank {} waited {:g} s for the other ranks to set up together{}",
                                        exchange_.rank_, exchange_.timeout_seconds_, missing);
    exchange_.abort(why);
    throw CommunicationError(why);
  }

  MpiExchange& exchange_;
  std::vector<bool> arrived_;
  MpiBackoff backoff_;
  std::chrono::steady_clock::time_point started_ = std::chrono::steady_clock::now();
  double patience_;
};

MpiExchange::MpiExchange(MPI_Comm parent, double timeout_seconds)
    : comm_(MpiComm::duplicate(parent)),
      aborts_(std::make_shared<AbortChannel>(comm_.get())),
      timeout_seconds_(timeout_seconds),
      rank_(comm_.rank()),
      rank_count_(comm_.rank_count()) {}

std::vector<std::string> MpiExchange::all(std::string_view own) {
  aborts_->throw_if_posted();
  const std::string frame = framed(own);
  return cut(rank_ == 0 ? collect_and_tell(frame) : tell_and_hear(frame), rank_count_);
}

std::string MpiExchange::collect_and_tell(const std::string& frame) {
  Wait wait(*this);
  std::vector<std::string> frames(static_cast<std::size_t>(rank_count_));
  frames[0] = frame;
  std::string bytes;
  for (int missing_count = rank_count_ - 1; missing_count > 0;) {
    int source = 0;
    if (!try_receive(comm_.get(), MPI_ANY_SOURCE, kUpTag, &bytes, &source)) {
      wait.pause();
      continue;
    }
    frames[source] = std::move(bytes);
    wait.arrived(source);
    --missing_count;
  }
  std::string total;
  for (const std::string& part : frames) total += part;
  if (total.size() > static_cast<std::size_t>(MpiRequests::kMaxMessageBytes)) {
    const std::string why = fmt::format("ranks exchange {} bytes at once where 1 GiB is the most", total.size());
    abort(why);
    throw FaultError(why);
  }
  MpiRequests requests;
  for (int r = 1; r < rank_count_; ++r) {
    requests.send({comm_.get(), r, kDownTag}, total.data(), static_cast<int64_t>(total.size()));
  }
  while (!requests.done()) wait.pause();
  return total;
}

std::string MpiExchange::tell_and_hear(const std::string& frame) {
  Wait wait(*this);
  MpiRequests requests;
  requests.send({comm_.get(), 0, kUpTag}, frame.data(), static_cast<int64_t>(frame.size()));
  std::string total;
  int source = 0;
  while (!try_receive(comm_.get(), 0, kDownTag, &total, &source)) wait.pause();
  while (!requests.done()) wait.pause();
  return total;
}

std::unique_ptr<Exchange> MpiExchange::split(int color, int key) { return split_mpi(color, key); }

std::unique_ptr<MpiExchange> MpiExchange::split_mpi(int color, int key) {
  all("split");  // MPI's own call would wait for a missing rank for ever
  const MpiComm group = MpiComm::split(comm_.get(), color, key);
  return std::make_unique<MpiExchange>(group.get(), timeout_seconds_);
}

std::unique_ptr<MpiExchange> MpiExchange::split_by_node() {
  all("split by node");
  const MpiComm node = MpiComm::split_by_node(comm_.get());
  return std::make_unique<MpiExchange>(node.get(), timeout_seconds_);
}

}  // namespace aliquot
