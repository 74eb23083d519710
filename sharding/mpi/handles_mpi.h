#pragma once
// Wrappers for MPI: initialization, conversion of errors to exceptions, and RAII handles.

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mpi.h>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace aliquot {

/// Returns MPI's description of an error code.
std::string mpi_error_text(int code) noexcept;
/// Throws FaultError, naming the call, unless `code` is MPI_SUCCESS.
void check_mpi(int code, const char* call);

/// A deadline for calls of MPI that wait for other ranks without a timeout. If the object still exists after the
/// deadline, the process prints "rank 0 waited 600 s for the other ranks to start MPI together" and ends with
/// ExitCode::kFault, whereupon the launcher ends the other ranks. `purpose` is a verb such as "start MPI".
class MpiDeadline {
 public:
  MpiDeadline(double seconds, const char* purpose) noexcept;
  ~MpiDeadline();
  MpiDeadline(const MpiDeadline&) = delete;
  MpiDeadline& operator=(const MpiDeadline&) = delete;

 private:
  void watch(double seconds, const char* purpose);

  // Read before the watcher starts: MPI sets environment variables, and another thread must not read them meanwhile.
  const int rank_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool done_ = false;
  std::thread watcher_;
};

/// Initializes MPI with MPI_THREAD_MULTIPLE, unless it is already initialized. Throws UnavailableError if MPI provides
/// a lower thread level. Must be called on the main thread. MPI_Init_thread() and MPI_Finalize() must end within
/// `timeout_seconds`: see MpiDeadline.
///
/// If this function initialized MPI, a handler finalizes it when the process exits:
/// - A rank that exits waits for the other ranks, because mpirun could otherwise kill a rank that is still printing an
///   error. All ranks then exit with the code of the rank that caused the failure. limit_wait_at_exit() limits this
///   wait.
/// - A rank that failed, or has a nonzero exit code, waits only for kExitGraceSeconds, and then ends all ranks with
///   MPI_Abort() and its code.
void start_mpi(double timeout_seconds);
inline constexpr double kExitGraceSeconds = 1;

/// Records that a collective was abandoned, so that its messages may never complete. Memory that MPI may still access
/// is leaked afterwards instead of freed. Thread-safe.
void mark_mpi_failed() noexcept;
bool mpi_failed() noexcept;

/// Owns an MPI communicator with the error handler MPI_ERRORS_RETURN. The destructor frees it, except after a failure.
/// Move-only.
class MpiComm {
 public:
  MpiComm() = default;
  MpiComm(MpiComm&& other) noexcept : comm_(std::exchange(other.comm_, MPI_COMM_NULL)) {}
  MpiComm& operator=(MpiComm&& other) noexcept {
    std::swap(comm_, other.comm_);
    return *this;
  }
  ~MpiComm() { (void)reset(); }

  // These functions are collective over `parent`. They block without a timeout, so the ranks must synchronize before
  // they call them.
  static MpiComm duplicate(MPI_Comm parent);
  static MpiComm split(MPI_Comm parent, int color, int key);
  /// Returns a communicator of the ranks of `parent` that can share memory with this rank.
  static MpiComm split_by_node(MPI_Comm parent);

  MPI_Comm get() const { return comm_; }
  int rank() const;
  int rank_count() const;

  /// Frees the communicator. Returns MPI's error code.
  int reset() noexcept;

 private:
  explicit MpiComm(MPI_Comm comm) : comm_(comm) {}
  static MpiComm own(MPI_Comm comm);

  MPI_Comm comm_ = MPI_COMM_NULL;
};

/// The peer and tag of a message.
struct MpiEnvelope {
  MPI_Comm comm = MPI_COMM_NULL;
  int rank = 0;
  int tag = 0;
};

/// A set of messages in flight. Reuses its memory, so that training steps do not allocate. The caller owns the message
/// buffers, which must stay alive until done() returns true, or until cancel() returns. Used by one thread at a time.
class MpiRequests {
 public:
  MpiRequests() = default;
  MpiRequests(MpiRequests&&) = default;
  MpiRequests& operator=(MpiRequests&&) = default;
  ~MpiRequests() { cancel(); }

  /// Send and receive data. Both functions split data longer than kMaxMessageBytes into messages of the same lengths.
  void send(const MpiEnvelope& to, const void* data, int64_t size_bytes);
  void receive(const MpiEnvelope& from, void* data, int64_t size_bytes);
  /// Receives a message of `size_bytes` from `rank` that MPI_Improbe() has matched.
  void receive(MPI_Message message, int rank, void* data, int size_bytes);
  static constexpr int64_t kMaxMessageBytes = int64_t{1} << 30;

  /// Makes progress without blocking. Returns true if all messages are complete; the set is then empty. Throws
  /// FaultError if a message failed or has an unexpected length.
  bool done();
  bool empty() const { return requests_.empty(); }
  /// Returns the ranks from which messages have not arrived, for error messages.
  std::vector<int> pending_sources();

  /// Abandons incomplete messages. Receives that have not started do not write to their buffers afterwards.
  void cancel() noexcept;

 private:
  void check_sizes() const;

  std::vector<MPI_Request> requests_;
  std::vector<MPI_Status> statuses_;
  std::vector<int> expected_bytes_;  // the length of a received message; -1 for a send
  std::vector<int> ranks_;
};

/// Limits the rate of a loop that polls for messages. In the first kSpinPhase, pause() returns immediately. Until
/// kYieldPhase, it yields the core. Afterwards, it sleeps for kSleep.
class MpiBackoff {
 public:
  void pause();
  /// Whether the loop should perform its slow checks (clock, abort messages) in this round.
  bool slow_checks_due() const { return round_ % kSlowCheckInterval == 0; }

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::microseconds kSpinPhase{20}, kYieldPhase{50'000}, kSleep{50};
  static constexpr int kSlowCheckInterval = 32;
  Clock::time_point started_ = Clock::now();
  int round_ = 0;
};

}  // namespace aliquot
