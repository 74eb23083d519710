#include "engine/guard_range.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <fmt/format.h>
#include <mutex>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include "kernels/error.h"

namespace aliquot {
namespace {

constexpr int64_t kPageBytes = 4096;

/// The guard ranges of this process, for a signal handler: fixed places, no lock.
constexpr std::size_t kMostRanges = 256;
std::array<std::atomic<const GuardRange*>, kMostRanges> ranges{};
std::array<struct sigaction, 2> previous_actions{};

struct sigaction& previous_action(int signal) {
  return previous_actions[signal == SIGBUS];
}

void say(const char* text) noexcept {
  if (write(STDERR_FILENO, text, std::strlen(text)) < 0) return;
}

void say_touched(const char* name) noexcept {
  say("aliquot: parameter ");
  say(name);
  say(" was touched outside a live scope: open unit.forward() or unit.backward() around its use, and keep no pointer "
      "beyond it\n");
}

/// As if this handler had never been there: the one before gets what the kernel gave, and may mend what faulted and return.
void pass_on(int signal, siginfo_t* info, void* context) {
  const struct sigaction before = previous_action(signal);
  const bool sent = info->si_code <= 0;  // by a process: no instruction is at fault
  if (sent && before.sa_handler == SIG_IGN) return;
  if (before.sa_handler == SIG_DFL || before.sa_handler == SIG_IGN) {
    sigaction(signal, &before, nullptr);
    if (sent) raise(signal);  // else the instruction faults again when this returns, and the process dies of that
    return;
  }
  if ((before.sa_flags & SA_RESETHAND) != 0) previous_action(signal) = {};
  if ((before.sa_flags & SA_SIGINFO) != 0) {
    before.sa_sigaction(signal, info, context);
  } else {
    before.sa_handler(signal);
  }
}

/// On the alternate stack where the thread has one: who handles overflows of the stack handles them there.
void take_signal(int signal, void (*handler)(int, siginfo_t*, void*)) {
  sigaction(signal, nullptr, &previous_action(signal));  // known before the first fault comes
  const struct sigaction& before = previous_action(signal);
  struct sigaction action {};
  action.sa_mask = before.sa_mask;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK | (before.sa_flags & (SA_NODEFER | SA_RESTART));
  action.sa_sigaction = handler;
  sigaction(signal, &action, nullptr);
}

}  // namespace

GuardRange::GuardRange(std::vector<Tensor> tensors) : tensors_(std::move(tensors)) {
  for (const Tensor& tensor : tensors_) {
    offsets_.push_back(size_bytes_);
    size_bytes_ += (std::max<int64_t>(tensor.size_bytes, 1) + kPageBytes - 1) / kPageBytes * kPageBytes;
  }
  if (size_bytes_ == 0) return;
  void* base = mmap(nullptr, static_cast<std::size_t>(size_bytes_), PROT_NONE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED)
    throw UnavailableError(fmt::format("the system gives no {} bytes of addresses to guard parameters", size_bytes_));
  base_ = static_cast<std::byte*>(base);
  for (auto& place : ranges) {
    const GuardRange* expected = nullptr;
    if (place.compare_exchange_strong(expected, this)) break;
  }
}

GuardRange::~GuardRange() {
  for (auto& place : ranges) {
    const GuardRange* expected = this;
    if (place.compare_exchange_strong(expected, nullptr)) break;
  }
  if (base_ != nullptr) munmap(base_, static_cast<std::size_t>(size_bytes_));
}

const char* GuardRange::name_at(const void* address) const noexcept {
  const auto offset = static_cast<const std::byte*>(address) - base_;
  if (offset < 0 || offset >= size_bytes_) return nullptr;
  const auto after = std::upper_bound(offsets_.begin(), offsets_.end(), offset);
  return tensors_[static_cast<std::size_t>(after - offsets_.begin()) - 1].name.c_str();
}

void install_fault_names() {
  static std::once_flag once;  // a second time it would find itself to be the one before, and pass faults on to itself
  std::call_once(once, [] {
    const auto name_and_pass_on = [](int signal, siginfo_t* info, void* context) {
      const int error = errno;
      for (const auto& place : ranges) {
        const GuardRange* range = info->si_code <= 0 ? nullptr : place.load();
        const char* name = range == nullptr ? nullptr : range->name_at(info->si_addr);
        if (name != nullptr) say_touched(name);
      }
      errno = error;
      pass_on(signal, info, context);
    };
    take_signal(SIGSEGV, name_and_pass_on);
    take_signal(SIGBUS, name_and_pass_on);
  });
}

}  // namespace aliquot
