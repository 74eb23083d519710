// Tests that Aliquot's fault handler names the tensor and then calls the handler that was installed before. Signal
// handlers apply to the entire process, so each test runs in a separate process.
#include "engine/run/memory/guard_range.h"

#include <array>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <string>
#include <sys/mman.h>
#include <unistd.h>

#include "engine/run/memory/fault_names.h"

namespace aliquot {
namespace {

constexpr std::size_t kPageBytes = 4096;
std::byte* page = nullptr;
std::array<char, 1 << 16> stack_of_handlers;

void touch(const std::byte* at) { (void)*static_cast<const volatile std::byte*>(at); }

void handle(int signal, void (*handler)(int, siginfo_t*, void*), int flags) {
  struct sigaction action {};
  action.sa_sigaction = handler;
  action.sa_flags = SA_SIGINFO | flags;
  sigaction(signal, &action, nullptr);
}

/// The handler of a program that maps pages on demand. Makes `page` readable, or exits with 7 if its arguments do not
/// describe a fault in `page`.
void map_on_fault(int signal, siginfo_t* info, void* context) {
  if (signal != SIGSEGV || info->si_code != SEGV_ACCERR || info->si_addr != page || context == nullptr) _exit(7);
  mprotect(page, kPageBytes, PROT_READ);
}

void map_page() {
  page = static_cast<std::byte*>(mmap(nullptr, kPageBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
}

/// Causes two faults that the program's own handler resolves, and then a fault at a guard address.
[[noreturn]] void fault_beside_own_handler() {
  map_page();
  handle(SIGSEGV, map_on_fault, 0);
  install_fault_names();
  touch(page);
  mprotect(page, kPageBytes, PROT_NONE);
  touch(page);
  static const GuardRange weights({{"parameter h.1.weight", 4}});
  touch(weights.address(0));  // outside `page`, so map_on_fault() exits with 7
  _exit(1);
}

TEST(GuardRangeDeathTest, PreviousHandlerReceivesTheArgumentsOfTheKernel) {
  EXPECT_EXIT(fault_beside_own_handler(), testing::ExitedWithCode(7), "parameter h.1.weight was accessed");
}

[[noreturn]] void fault_with_simple_handler() {
  std::signal(SIGSEGV, [](int signal) { _exit(signal == SIGSEGV ? 9 : 1); });
  install_fault_names();
  map_page();
  touch(page);
  _exit(1);
}

TEST(GuardRangeDeathTest, PreviousHandlerWithoutSigInfoIsCalled) {
  EXPECT_EXIT(fault_with_simple_handler(), testing::ExitedWithCode(9), "^$");
}

void fault_after_installing(int times) {
  std::signal(SIGSEGV, SIG_DFL);
  for (int i = 0; i < times; ++i) install_fault_names();
  const GuardRange weights({{"parameter h.1.weight", 4}});
  touch(weights.address(0));
}

/// Regression test: a second installation stored Aliquot's handler as the previous handler, which looped forever.
TEST(GuardRangeDeathTest, SecondInstallationHasNoEffect) {
  for (const int times : {1, 2, 3}) {
    EXPECT_EXIT(
        {
          alarm(20);
          fault_after_installing(times);
        },
        testing::KilledBySignal(SIGSEGV),
        "^aliquot: parameter h.1.weight was accessed outside of an open scope: [^\n]*\n$");
  }
}

/// After a signal from kill() no faulting instruction runs again, so the handler must end the process itself.
TEST(GuardRangeDeathTest, SignalFromKillEndsTheProcess) {
  const auto send_signal = [] {
    std::signal(SIGBUS, SIG_DFL);
    install_fault_names();
    kill(getpid(), SIGBUS);
    pause();
  };
  EXPECT_EXIT(send_signal(), testing::KilledBySignal(SIGBUS), "^$");
}

[[noreturn]] void fault_twice_with_one_shot_handler() {
  map_page();
  handle(SIGSEGV, map_on_fault, static_cast<int>(SA_RESETHAND));
  install_fault_names();
  touch(page);
  mprotect(page, kPageBytes, PROT_NONE);
  touch(page);
  _exit(1);
}

TEST(GuardRangeDeathTest, OneShotHandlerIsCalledOnce) {
  EXPECT_EXIT(fault_twice_with_one_shot_handler(), testing::KilledBySignal(SIGSEGV), "^$");
}

int recurse_forever(int depth) {
  std::array<volatile char, 1024> frame{};
  frame[0] = static_cast<char>(depth);
  return depth < 0 ? 0 : recurse_forever(depth + 1) + frame[0];
}

/// After a stack overflow, a handler can run only on an alternate stack.
[[noreturn]] void overflow_the_stack() {
  stack_t stack{};
  stack.ss_sp = stack_of_handlers.data();
  stack.ss_size = stack_of_handlers.size();
  sigaltstack(&stack, nullptr);
  handle(
      SIGSEGV, [](int, siginfo_t*, void*) { _exit(11); }, SA_ONSTACK);
  install_fault_names();
  _exit(recurse_forever(0) == 0 ? 1 : 2);
}

TEST(GuardRangeDeathTest, StackOverflowIsHandledOnTheAlternateStack) {
  EXPECT_EXIT(overflow_the_stack(), testing::ExitedWithCode(11), "^$");
}

/// Regression test: an index beyond a parameter was attributed to the next parameter.
TEST(GuardRangeDeathTest, OverrunNamesTheParameterThatWasOverrun) {
  const auto overrun = [] {
    std::signal(SIGSEGV, SIG_DFL);
    install_fault_names();
    const GuardRange weights({{"parameter h.0.weight", 4}, {"parameter h.1.weight", 4}});
    touch(weights.address(0) + 10'000);
  };
  EXPECT_EXIT(
      overrun(), testing::KilledBySignal(SIGSEGV),
      "^aliquot: parameter h.0.weight was accessed outside of an open scope 9996 bytes beyond its end: access it");
}

/// A pipe in packet mode returns one write per read.
TEST(FaultLine, IsWrittenInOneCall) {
  std::array<int, 2> ends{};
  ASSERT_EQ(pipe2(ends.data(), O_DIRECT | O_NONBLOCK), 0);
  const int before = dup(STDERR_FILENO);
  dup2(ends[1], STDERR_FILENO);
  FaultLine line;
  line.add("aliquot: ");
  line.add(int64_t{-12});
  line.add(std::string(5000, 'x'));
  line.write();
  dup2(before, STDERR_FILENO);
  std::array<char, 4096> text{};
  const auto length = read(ends[0], text.data(), text.size());
  ASSERT_GT(length, 100);
  EXPECT_EQ(std::string_view(text.data(), 16), "aliquot: -12xxxx");
  EXPECT_EQ(text[static_cast<std::size_t>(length) - 1], '\n') << "a long line should be cut before its newline";
  EXPECT_LT(read(ends[0], text.data(), text.size()), 0) << "there was a second write";
  for (const int descriptor : {before, ends[0], ends[1]}) close(descriptor);
}

}  // namespace
}  // namespace aliquot
