#include "sharding/mpi/handles_mpi.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fmt/format.h>
#include <system_error>
#include <thread>
#include <unistd.h>

#include "kernels/system/error.h"
#include "sharding/launcher.h"
#include "sharding/mpi/thread_level_mpi.h"
#include "sharding/world.h"

namespace aliquot {
namespace {

std::atomic<bool> failed{false};

constexpr const char* kExit = "exit";

// The communicator on which ranks agree on the exit code. start_mpi() creates it, and it is never freed.
MPI_Comm exit_comm = MPI_COMM_NULL;

double finalize_timeout_seconds = INFINITY;
double exit_timeout_seconds = INFINITY;  // see limit_wait_at_exit()

// All ranks exit with the code of the rank that caused the failure. The other ranks exit with kFault as a consequence,
// so kFault has the lowest severity of all errors.
int severity_of_code(int code) { return code == 0 ? 0 : code == static_cast<int>(ExitCode::kFault) ? 1 : 1 + code; }
int code_of_severity(int severity) {
  return severity <= 1 ? severity * static_cast<int>(ExitCode::kFault) : severity - 1;
}

// Makes the deadlines of ranks differ, because mpirun 4.1 may crash or hang if several ranks end the job at the same
// time. The difference exceeds that between the times at which ranks usually begin to wait.
double stagger_seconds(int rank) { return 0.25 * std::min(rank, 20); }

void print_exceeded(int rank, double seconds, const char* purpose) noexcept {
  std::fprintf(stderr, "aliquot: rank %d waited %g s for the other ranks to %s together\n", rank, seconds, purpose);
}

// Waits for all ranks to exit and returns the common exit code. Returns -1 after `limit_seconds`.
int agree_on_exit_code(int status, double limit_seconds) noexcept {
  const int own = severity_of_code(status);
  int most = own;
  MPI_Request request = MPI_REQUEST_NULL;
  if (MPI_Iallreduce(&own, &most, 1, MPI_INT, MPI_MAX, exit_comm, &request) != MPI_SUCCESS) return -1;
  int rank = 0;
  MPI_Comm_rank(exit_comm, &rank);
  const double limit = limit_seconds + stagger_seconds(rank);
  const auto begun = std::chrono::steady_clock::now();
  for (;;) {
    int done = 0;
    if (MPI_Test(&request, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS) return -1;
    if (done != 0) return code_of_severity(most);
    if (std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count() > limit) return -1;
    std::this_thread::sleep_for(std::chrono::microseconds(500));
  }
}

// Finalizes MPI. MPI_Finalize() of Open MPI tells mpiexec that the rank has finished, and waits for the answer for at
// most 2 s. If mpiexec has no processor time for longer, it may see the end of the process before it reads the message.
// It then reports that the rank exited improperly. A rank that may have received no answer therefore exits later.
void finalize_mpi() noexcept {
  constexpr double kWaitForAnswer = 2, kMoreTime = 5;
  const auto begun = std::chrono::steady_clock::now();
  {
    const MpiDeadline deadline(finalize_timeout_seconds, kExit);
    MPI_Finalize();
  }
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begun;
  if (took.count() >= kWaitForAnswer) std::this_thread::sleep_for(std::chrono::duration<double>(kMoreTime));
}

void finalize_mpi_at_exit(int status, void*) noexcept {
  int finalized = 0;
  MPI_Finalized(&finalized);
  if (finalized != 0) return;
  std::fflush(nullptr);
  const bool succeeded = status == 0 && !failed;
  const int agreed = agree_on_exit_code(status, succeeded ? exit_timeout_seconds : kExitGraceSeconds);
  if (agreed < 0) {
    if (succeeded) print_exceeded(launched_rank(), exit_timeout_seconds, kExit);
    MPI_Abort(MPI_COMM_WORLD, status == 0 ? static_cast<int>(ExitCode::kFault) : status);
  }
  finalize_mpi();
  if (agreed != status) _exit(agreed);
}

// Tunes the TCP transport of Open MPI for collectives at which all ranks have already arrived.
// - Raises the eager limit from 64 KiB. For longer messages, the sender waits for an answer from the receiver, whose
//   lane may be idle. MPI copies eager messages, so the limit keeps the copies for all ranks below kCopiesBytes. With
//   two ranks, it held about 16 messages at a time. A limit of 1 MiB was not faster than kMost.
// - Disables emulated remote writes (put), because with them the link is idle half of the time while ranks compute. All
//   ranks must have the same settings, so the function does nothing if the job consists of several programs. Settings
//   that the user made in the environment take precedence.
void configure_tcp_eager_limits() {
  constexpr std::array kLimits{"OMPI_MCA_btl_tcp_eager_limit", "OMPI_MCA_btl_tcp_rndv_eager_limit",
                               "OMPI_MCA_btl_tcp_max_send_size"};
  constexpr const char* kFlags = "OMPI_MCA_btl_tcp_flags";
  constexpr int kCopiesBytes = 32 << 20, kLeast = 128 << 10, kMost = 512 << 10;
  const char* programs = std::getenv("OMPI_NUM_APP_CTX");
  const auto is_set = [](const char* setting) { return std::getenv(setting) != nullptr; };
  const int limit = std::min(kCopiesBytes / launched_process_count(), kMost);
  if (limit < kLeast || is_set(kFlags) || std::ranges::any_of(kLimits, is_set)) return;
  if (programs != nullptr && std::string_view(programs) != "1") return;
  setenv(kFlags, "send,inplace,need-ack,need-csum,hetero-rdma", 0);  // the default without put
  for (const char* setting : kLimits) setenv(setting, std::to_string(limit).c_str(), 0);
}

}  // namespace

std::string mpi_error_text(int code) noexcept {
  char text[MPI_MAX_ERROR_STRING] = "unknown error";
  int length = 0;
  MPI_Error_string(code, text, &length);
  return text;
}

void check_mpi(int code, const char* call) {
  if (code != MPI_SUCCESS) throw FaultError(fmt::format("{} failed: {}", call, mpi_error_text(code)));
}

MpiDeadline::MpiDeadline(double seconds, const char* purpose) noexcept : rank_(launched_rank()) {
  if (!std::isfinite(seconds)) return;
  try {
    watcher_ = std::thread(&MpiDeadline::watch, this, seconds, purpose);
  } catch (const std::system_error&) {  // the process may have no more threads: continue without a deadline
  }
}

MpiDeadline::~MpiDeadline() {
  if (!watcher_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    done_ = true;
  }
  changed_.notify_one();
  watcher_.join();
}

void MpiDeadline::watch(double seconds, const char* purpose) {
  std::unique_lock lock(mutex_);
  const auto period = std::chrono::duration<double>(seconds + stagger_seconds(rank_));
  if (changed_.wait_for(lock, period, [this] { return done_; })) return;
  print_exceeded(rank_, seconds, purpose);
  _exit(static_cast<int>(ExitCode::kFault));
}

int process_number() noexcept {
  int initialized = 0, finalized = 0, rank = 0, rank_count = 1;
  MPI_Initialized(&initialized);
  MPI_Finalized(&finalized);
  if (initialized == 0 || finalized != 0) return launched_rank();
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &rank_count);
  return rank_count > 1 ? rank : launched_rank();
}

void limit_wait_at_exit(double seconds) noexcept { exit_timeout_seconds = seconds; }

void start_mpi(double timeout_seconds) {
  int initialized = 0, provided = 0;
  check_mpi(MPI_Initialized(&initialized), "MPI_Initialized");
  if (initialized != 0) return require_thread_multiple_of_program();
  configure_tcp_eager_limits();
  finalize_timeout_seconds = timeout_seconds;
  check_mpi(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided), "MPI_Init_thread");
  check_mpi(MPI_Comm_dup(MPI_COMM_WORLD, &exit_comm), "MPI_Comm_dup");
  MPI_Comm_set_errhandler(exit_comm, MPI_ERRORS_RETURN);
  on_exit(finalize_mpi_at_exit, nullptr);
  require_thread_multiple_provided(provided);
}

void mark_mpi_failed() noexcept { failed = true; }
bool mpi_failed() noexcept { return failed; }

MpiComm MpiComm::own(MPI_Comm comm) {
  MpiComm owned(comm);
  check_mpi(MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  return owned;
}

MpiComm MpiComm::duplicate(MPI_Comm parent) {
  MPI_Comm comm = MPI_COMM_NULL;
  check_mpi(MPI_Comm_dup(parent, &comm), "MPI_Comm_dup");
  return own(comm);
}

MpiComm MpiComm::split(MPI_Comm parent, int color, int key) {
  MPI_Comm comm = MPI_COMM_NULL;
  check_mpi(MPI_Comm_split(parent, color, key, &comm), "MPI_Comm_split");
  return own(comm);
}

MpiComm MpiComm::split_by_node(MPI_Comm parent) {
  MPI_Comm comm = MPI_COMM_NULL;
  check_mpi(MPI_Comm_split_type(parent, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &comm), "MPI_Comm_split_type");
  return own(comm);
}

int MpiComm::rank() const {
  int rank = 0;
  check_mpi(MPI_Comm_rank(comm_, &rank), "MPI_Comm_rank");
  return rank;
}

int MpiComm::rank_count() const {
  int count = 0;
  check_mpi(MPI_Comm_size(comm_, &count), "MPI_Comm_size");
  return count;
}

int MpiComm::reset() noexcept {
  const MPI_Comm comm = std::exchange(comm_, MPI_COMM_NULL);
  // After a failure, do not free the communicator: messages may be in flight, and MPI_Comm_free() may wait for other
  // ranks.
  if (comm == MPI_COMM_NULL || failed) return MPI_SUCCESS;
  int finalized = 0;
  MPI_Finalized(&finalized);
  if (finalized != 0) return MPI_SUCCESS;
  MPI_Comm freed = comm;
  return MPI_Comm_free(&freed);
}

void MpiRequests::send(const MpiEnvelope& to, const void* data, int64_t size_bytes) {
  const auto* bytes = static_cast<const std::byte*>(data);
  for (int64_t begin = 0; begin < size_bytes; begin += kMaxMessageBytes) {
    const int count = static_cast<int>(std::min(kMaxMessageBytes, size_bytes - begin));
    requests_.push_back(MPI_REQUEST_NULL);
    expected_bytes_.push_back(-1);
    ranks_.push_back(to.rank);
    check_mpi(MPI_Isend(bytes + begin, count, MPI_BYTE, to.rank, to.tag, to.comm, &requests_.back()), "MPI_Isend");
  }
}

void MpiRequests::receive(const MpiEnvelope& from, void* data, int64_t size_bytes) {
  auto* bytes = static_cast<std::byte*>(data);
  for (int64_t begin = 0; begin < size_bytes; begin += kMaxMessageBytes) {
    const int count = static_cast<int>(std::min(kMaxMessageBytes, size_bytes - begin));
    requests_.push_back(MPI_REQUEST_NULL);
    expected_bytes_.push_back(count);
    ranks_.push_back(from.rank);
    check_mpi(MPI_Irecv(bytes + begin, count, MPI_BYTE, from.rank, from.tag, from.comm, &requests_.back()),
              "MPI_Irecv");
  }
}

void MpiRequests::receive(MPI_Message message, int rank, void* data, int size_bytes) {
  requests_.push_back(MPI_REQUEST_NULL);
  expected_bytes_.push_back(size_bytes);
  ranks_.push_back(rank);
  check_mpi(MPI_Imrecv(data, size_bytes, MPI_BYTE, &message, &requests_.back()), "MPI_Imrecv");
}

bool MpiRequests::done() {
  if (requests_.empty()) return true;
  statuses_.resize(requests_.size());
  int all = 0;
  const int code = MPI_Testall(static_cast<int>(requests_.size()), requests_.data(), &all, statuses_.data());
  if (code != MPI_SUCCESS) {
    int worst = code;
    if (code == MPI_ERR_IN_STATUS) {
      for (const MPI_Status& status : statuses_) {
        if (status.MPI_ERROR != MPI_SUCCESS && status.MPI_ERROR != MPI_ERR_PENDING) worst = status.MPI_ERROR;
      }
    }
    check_mpi(worst, "MPI_Testall");
  }
  if (all == 0) return false;
  check_sizes();
  requests_.clear();
  expected_bytes_.clear();
  ranks_.clear();
  return true;
}

std::vector<int> MpiRequests::pending_sources() {
  std::vector<int> ranks;
  for (std::size_t i = 0; i < requests_.size(); ++i) {
    int is_done = 0;
    if (expected_bytes_[i] < 0 || requests_[i] == MPI_REQUEST_NULL) continue;
    if (MPI_Request_get_status(requests_[i], &is_done, MPI_STATUS_IGNORE) != MPI_SUCCESS || is_done != 0) continue;
    if (ranks.empty() || ranks.back() != ranks_[i]) ranks.push_back(ranks_[i]);
  }
  return ranks;
}

void MpiRequests::check_sizes() const {
  for (std::size_t i = 0; i < requests_.size(); ++i) {
    if (expected_bytes_[i] < 0) continue;
    int count = 0;
    check_mpi(MPI_Get_count(&statuses_[i], MPI_BYTE, &count), "MPI_Get_count");
    if (count == expected_bytes_[i]) continue;
    throw FaultError(fmt::format("a message from rank {} has {} bytes: expected {}", statuses_[i].MPI_SOURCE, count,
                                 expected_bytes_[i]));
  }
}

void MpiRequests::cancel() noexcept {
  int finalized = 0;
  if (!requests_.empty()) MPI_Finalized(&finalized);
  for (std::size_t i = 0; i < requests_.size() && finalized == 0; ++i) {
    if (requests_[i] == MPI_REQUEST_NULL) continue;
    mark_mpi_failed();
    // A send cannot be cancelled. If mpi_failed() returns true, the caller must keep the memory of the message alive.
    if (expected_bytes_[i] >= 0) MPI_Cancel(&requests_[i]);
    MPI_Request_free(&requests_[i]);
  }
  requests_.clear();
  expected_bytes_.clear();
  ranks_.clear();
}

void MpiBackoff::pause() {
  ++round_;
  const auto waited = Clock::now() - started_;
  if (waited <= kSpinPhase) return;
  // Yield before sleeping, because the sender of a message in several pieces waits for answers from this rank.
  if (waited <= kYieldPhase) return std::this_thread::yield();
  std::this_thread::sleep_for(kSleep);
}

}  // namespace aliquot
