// Tests of order, events, gates and failures of host streams.
#include "kernels/device/host_stream.h"

#include <atomic>
#include <chrono>
#include <gtest/gtest.h>
#include <sched.h>
#include <stdexcept>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <thread>
#include <unistd.h>
#include <vector>

#include "kernels/device/device.h"
#include "tests/kernels/device/time_marks_check.h"

namespace aliquot {
namespace {

void pause(int milliseconds) { std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds)); }

class HostStreams : public testing::Test {
 protected:
  std::unique_ptr<Stream> stream(Lane lane) { return device_->make_stream(lane); }
  std::unique_ptr<Event> event() { return device_->make_event(); }
  std::unique_ptr<Device> device_ = make_host_device(1);
};

TEST_F(HostStreams, WorkRunsInOrderOnAnotherThread) {
  const auto gather = stream(Lane::kGather);
  std::vector<int> order;
  std::thread::id where;
  for (int i = 0; i < 5000; ++i)
    as_host_stream(*gather).run([&order, &where, i] { order.push_back(i), where = std::this_thread::get_id(); });
  gather->synchronize();
  ASSERT_EQ(order.size(), 5000u);
  for (int i = 0; i < 5000; ++i) ASSERT_EQ(order[i], i);
  EXPECT_NE(where, std::this_thread::get_id());
}

TEST_F(HostStreams, TheComputeLaneRunsOnTheCallingThread) {
  const auto compute = stream(Lane::kCompute);
  std::thread::id where;
  as_host_stream(*compute).run([&where] { where = std::this_thread::get_id(); });
  EXPECT_EQ(where, std::this_thread::get_id());
}

TEST_F(HostStreams, AStreamWaitsForAnEventOfAnotherStream) {
  const auto gather = stream(Lane::kGather), reduce = stream(Lane::kReduce);
  const auto done = event();
  std::atomic<int> value{0};
  int seen = -1;
  as_host_stream(*gather).run([&value] { pause(30), value = 7; });
  gather->record(*done);
  EXPECT_FALSE(done->passed());
  reduce->wait(*done);
  as_host_stream(*reduce).run([&value, &seen] { seen = value; });
  reduce->synchronize();
  EXPECT_EQ(seen, 7);
  EXPECT_TRUE(done->passed());
}

TEST_F(HostStreams, AWaitCoversOnlyWorkBeforeTheRecord) {
  const auto gather = stream(Lane::kGather), compute = stream(Lane::kCompute);
  const auto mark = event();
  std::atomic<bool> let_go{false};
  gather->record(*mark);
  const auto early = event();
  gather->record(*early);
  as_host_stream(*gather).run([&let_go] {
    while (!let_go) pause(1);
  });
  compute->wait(*early);  // must not wait for work that was enqueued after `early` was recorded
  gather->record(*mark);
  EXPECT_FALSE(mark->passed());
  let_go = true;
  compute->wait(*mark);
  EXPECT_TRUE(mark->passed());
}

TEST_F(HostStreams, AnEventNeverRecordedHasPassed) {
  EXPECT_TRUE(event()->passed());
  stream(Lane::kCompute)->wait(*event());
}

struct FlagIsSet {
  std::atomic<bool>* flag;
  bool open() const { return flag->load(); }
  void block() const {
    while (!open()) pause(1);
  }
};

TEST_F(HostStreams, WorkWaitsForItsGate) {
  const auto gather = stream(Lane::kGather);
  std::atomic<bool> flag{false}, ran{false};
  as_host_stream(*gather).wait_for(Gate(FlagIsSet{&flag}));
  as_host_stream(*gather).run([&ran] { ran = true; });
  pause(20);
  EXPECT_FALSE(ran);
  flag = true;
  gather->synchronize();
  EXPECT_TRUE(ran);
}

TEST_F(HostStreams, AFailureReachesEveryStreamThatWaitsForTheFailedStream) {
  const auto gather = stream(Lane::kGather), reduce = stream(Lane::kReduce), compute = stream(Lane::kCompute);
  const auto done = event(), after = event();
  std::atomic<int> ran{0};
  as_host_stream(*gather).run([] { throw std::runtime_error("no such peer"); });
  as_host_stream(*gather).run([&ran] { ++ran; });
  gather->record(*done);
  reduce->wait(*done);
  as_host_stream(*reduce).run([&ran] { ++ran; });
  reduce->record(*after);
  EXPECT_THROW(compute->wait(*after), std::runtime_error);
  EXPECT_THROW(gather->synchronize(), std::runtime_error);
  EXPECT_THROW(reduce->synchronize(), std::runtime_error);
  EXPECT_EQ(ran, 0);
  EXPECT_TRUE(done->passed() && after->passed());
}

TEST_F(HostStreams, DestructionFinishesQueuedWork) {
  std::atomic<int> ran{0};
  {
    const auto gather = stream(Lane::kGather);
    for (int i = 0; i < 100; ++i) as_host_stream(*gather).run([&ran] { ++ran; });
  }
  EXPECT_EQ(ran, 100);
}

struct NeverOpens {
  bool open() const { return false; }
  void block() const {
    while (!work_cancelled()) pause(1);
    throw WorkCancelled{};
  }
};

TEST_F(HostStreams, UnwindingDropsQueuedWorkAndCancelsAGate) {
  std::atomic<int> ran{0};
  EXPECT_THROW(
      {
        const auto gather = stream(Lane::kGather);
        as_host_stream(*gather).wait_for(Gate(NeverOpens{}));
        as_host_stream(*gather).run([&ran] { ++ran; });
        throw std::runtime_error("unwinding");
      },
      std::runtime_error);
  EXPECT_EQ(ran, 0);
}

/// Two streams. `waiter` has a queued wait for an event of `other`. `first` is destroyed before `last`. `first` is the
/// waiter if waiter_goes_first is true.
struct WaitingPair {
  explicit WaitingPair(Device& device, bool waiter_goes_first)
      : last(device.make_stream(Lane::kGather)), first(device.make_stream(Lane::kReduce)), event(device.make_event()) {
    if (!waiter_goes_first) std::swap(waiter, other);
  }
  void queue_the_wait() {
    (*other)->record(*event);
    (*waiter)->wait(*event);
    as_host_stream(**waiter).run([this] { ++ran; });
  }

  std::atomic<int> ran{0};
  std::unique_ptr<Stream> last, first;
  std::unique_ptr<Event> event;
  std::unique_ptr<Stream>*waiter = &first, *other = &last;
};

TEST_F(HostStreams, StreamsMayBeDestroyedInEitherOrder) {
  for (const bool waiter_goes_first : {false, true}) {
    WaitingPair pair(*device_, waiter_goes_first);
    as_host_stream(**pair.waiter).run([] { pause(30); });  // the other stream may be destroyed before this work ends
    as_host_stream(**pair.other).run([] { pause(5); });
    pair.queue_the_wait();
    pair.first.reset();
    pair.last.reset();
    EXPECT_EQ(pair.ran, 1);
    EXPECT_TRUE(pair.event->passed());
  }
}

TEST_F(HostStreams, UnwindingEndsAWaitForAnotherStream) {
  for (const bool waiter_goes_first : {false, true}) {
    const auto start = std::chrono::steady_clock::now();
    EXPECT_THROW(
        {
          WaitingPair pair(*device_, waiter_goes_first);
          as_host_stream(**pair.other).wait_for(Gate(NeverOpens{}));
          pair.queue_the_wait();
          pause(20);  // gives both workers time to begin their waits
          throw std::runtime_error("unwinding");
        },
        std::runtime_error);
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(5));
  }
}

TEST_F(HostStreams, EventsOrderManyRoundsOfTwoStreams) {
  const auto gather = stream(Lane::kGather), reduce = stream(Lane::kReduce);
  const auto ping = event(), pong = event();
  int64_t value = 0;  // not atomic: the events order all accesses
  constexpr int kRounds = 20'000;
  for (int i = 0; i < kRounds; ++i) {
    as_host_stream(*gather).run([&value] { ++value; });
    gather->record(*ping);
    reduce->wait(*ping);
    as_host_stream(*reduce).run([&value] { value += 2; });
    reduce->record(*pong);
    gather->wait(*pong);
  }
  gather->synchronize();
  reduce->synchronize();
  EXPECT_EQ(value, 3 * kRounds);
}

// Lanes run rarely but must start at once, even while other threads keep all cores busy.
TEST_F(HostStreams, LanesHaveShortTimeSlicesAndTheNiceValueOfTheRank) {
  struct {
    uint32_t size = 48, policy = 0;
    uint64_t flags = 0;
    int32_t nice = 0;
    uint32_t priority = 0;
    uint64_t runtime = 0, deadline = 0, period = 0;
  } own, lanes;
  int timer_slack = 0;
  std::thread rank([&] {
    // On Linux this changes only the calling thread. It fails if the thread's nice value is larger than 3 already.
    setpriority(PRIO_PROCESS, static_cast<id_t>(gettid()), 3);
    const auto gather = stream(Lane::kGather);
    as_host_stream(*gather).run([&] {
      timer_slack = prctl(PR_GET_TIMERSLACK);
      syscall(SYS_sched_getattr, 0, &lanes, sizeof(lanes), 0);
    });
    gather->synchronize();
    syscall(SYS_sched_getattr, 0, &own, sizeof(own), 0);
  });
  rank.join();
  EXPECT_EQ(timer_slack, 1);
  EXPECT_EQ(lanes.nice, own.nice);
  if (own.runtime == 0 || own.policy != SCHED_OTHER) GTEST_SKIP() << "this system has no per-thread time slices";
  EXPECT_EQ(lanes.runtime, 100'000u);
  EXPECT_GT(own.runtime, lanes.runtime);
}

TEST_F(HostStreams, TimeMarksHaveTheTimesOfTheStreams) { expect_times_of_streams(*device_, 0); }

}  // namespace
}  // namespace aliquot
