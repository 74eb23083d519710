#pragma once
// MPI, wrapped once: started and ended once a process, errors as exceptions, handles that free themselves.

#include <chrono>
#include <cstdint>
#include <mpi.h>
#include <string>
#include <utility>
#include <vector>

namespace aliquot {

/// What MPI says of `code`. Never throws.
std::string mpi_error_text(int code) noexcept;
/// Throws FaultError, naming the call, unless `code` is MPI_SUCCESS.
void check_mpi(int code, const char* call);

/// Starts MPI with MPI_THREAD_MULTIPLE at the first call; later calls do nothing. Throws UnavailableError if the library
/// has less, or if the program started it with less. From the main thread.
///
/// MPI that was started here ends with the process, by this policy. Every rank that exits waits for the others, so that
/// mpirun does not kill one that still has a sentence to print, and all take the exit code of the one that failed
/// first-hand; a rank whose exit code is not 0, or that failed, waits for kExitGracePeriod, then ends all of them with its
/// code. Nobody hangs in MPI_Finalize. A program that started MPI itself ends it itself.
void start_mpi();
inline constexpr std::chrono::milliseconds kExitGracePeriod{1000};

/// Says that messages may be left under way for ever: a collective was given up. From any thread.
void mark_mpi_failed() noexcept;
bool mpi_failed() noexcept;

/// A communicator of one's own, whose errors are returned. Freed with it, except after a failure. Move-only.
class MpiComm {
 public:
  MpiComm() = default;
  MpiComm(MpiComm&& other) noexcept : comm_(std::exchange(other.comm_, MPI_COMM_NULL)) {}
  MpiComm& operator=(MpiComm&& other) noexcept {
    std::swap(comm_, other.comm_);
    return *this;
  }
  ~MpiComm() { (void)reset(); }

  // These are collective over `parent`, and block until all its ranks have come: agree that they do before.
  static MpiComm duplicate(MPI_Comm parent);
  static MpiComm split(MPI_Comm parent, int color, int key);
  /// The ranks of `parent` that can share memory with this one.
  static MpiComm split_by_node(MPI_Comm parent);

  MPI_Comm get() const { return comm_; }
  int rank() const;
  int rank_count() const;

  /// Frees it now. Returns MPI's code, never throws.
  int reset() noexcept;

 private:
  explicit MpiComm(MPI_Comm comm) : comm_(comm) {}
  static MpiComm own(MPI_Comm comm);

  MPI_Comm comm_ = MPI_COMM_NULL;
};

/// One message of a communicator: to or from `rank`, with `tag`.
struct MpiEnvelope {
  MPI_Comm comm = MPI_COMM_NULL;
  int rank = 0;
  int tag = 0;
};

/// Messages under way. Keeps its memory from use to use, so that a training step allocates nothing. The bytes stay the
/// caller's, alive until done() or cancel(). One thread at a time.
class MpiRequests {
 public:
  MpiRequests() = default;
  MpiRequests(MpiRequests&&) = default;
  MpiRequests& operator=(MpiRequests&&) = default;
  ~MpiRequests() { cancel(); }

  /// Longer than kMaxMessageBytes travels as several, which both sides count alike.
  void send(const MpiEnvelope& to, const void* data, int64_t size_bytes);
  void receive(const MpiEnvelope& from, void* data, int64_t size_bytes);
  /// What MPI_Improbe has found: `size_bytes` of it from `rank`.
  void receive(MPI_Message message, int rank, void* data, int size_bytes);
  static constexpr int64_t kMaxMessageBytes = int64_t{1} << 30;

  /// Moves messages on; true when all are done, and then it is empty again. Never blocks. Throws FaultError for a message
  /// that failed or came shorter or longer than expected.
  bool done();
  bool empty() const { return requests_.empty(); }
  /// The ranks whose messages to receive are not done; for the text of an error.
  std::vector<int> pending_sources();

  /// Gives up what is not done yet; receives that have not begun will write nothing.
  void cancel() noexcept;

 private:
  void check_sizes() const;

  std::vector<MPI_Request> requests_;
  std::vector<MPI_Status> statuses_;
  std::vector<int> expected_bytes_;  // of a receive; -1 of a send
  std::vector<int> ranks_;
};

/// Waiting for messages, which only move while somebody asks for them: in a tight loop at first, then letting others have the
/// core in between, and when it has taken so long that no link is at work any more, in short sleeps.
class MpiBackoff {
 public:
  void pause();
  /// True at every round worth a look at slow things: clocks, abort messages.
  bool slow_checks_due() const { return round_ % kSlowCheckInterval == 0; }

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::microseconds kSpinPhase{20}, kYieldPhase{50'000}, kSleep{50};
  static constexpr int kSlowCheckInterval = 32;
  Clock::time_point started_ = Clock::now();
  int round_ = 0;
};

}  // namespace aliquot
