#include "engine/run/memory/fault_names.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <mutex>
#include <signal.h>
#include <unistd.h>

#include "engine/run/memory/guard_range.h"

namespace aliquot {
namespace {

/// The explainers of this process. A signal handler reads them, so the array has a fixed length and no lock. If the
/// array is full, further explainers are not called.
constexpr std::size_t kMaxExplainers = 1024;
std::array<std::atomic<const FaultExplainer*>, kMaxExplainers> sources{};
std::array<struct sigaction, 2> previous_actions{};

struct sigaction& previous_action(int signal) {
  return previous_actions[signal == SIGBUS];
}

/// Calls the previous handler with the arguments from the kernel. The previous handler may repair the fault and return.
void call_previous_handler(int signal, siginfo_t* info, void* context) {
  const struct sigaction before = previous_action(signal);
  const bool sent = info->si_code <= 0;  // sent by a process, not caused by an instruction
  if (sent && before.sa_handler == SIG_IGN) return;
  if (before.sa_handler == SIG_DFL || before.sa_handler == SIG_IGN) {
    sigaction(signal, &before, nullptr);
    if (sent) raise(signal);  // otherwise the instruction faults again after the return, and the process terminates
    return;
  }
  if ((before.sa_flags & SA_RESETHAND) != 0) previous_action(signal) = {};
  if ((before.sa_flags & SA_SIGINFO) != 0) {
    before.sa_sigaction(signal, info, context);
  } else {
    before.sa_handler(signal);
  }
}

/// Sets SA_ONSTACK, because a previous handler for stack overflow needs the alternate stack.
void install_handler(int signal, void (*handler)(int, siginfo_t*, void*)) {
  sigaction(signal, nullptr, &previous_action(signal));  // stored before the new handler can run
  const struct sigaction& before = previous_action(signal);
  struct sigaction action {};
  action.sa_mask = before.sa_mask;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK | (before.sa_flags & (SA_NODEFER | SA_RESTART));
  action.sa_sigaction = handler;
  sigaction(signal, &action, nullptr);
}

void explain_and_forward(int signal, siginfo_t* info, void* context) {
  const int error = errno;
  if (info->si_code > 0) {
    FaultLine line;
    for (const auto& place : sources) {
      const FaultExplainer* source = place.load();
      if (source == nullptr || !source->explain(info->si_addr, line)) continue;
      line.write();
      break;
    }
  }
  errno = error;
  call_previous_handler(signal, info, context);
}

}  // namespace

void FaultLine::add(std::string_view text) noexcept {
  const std::size_t length = std::min(text.size(), text_.size() - 1 - length_);  // one byte is for the newline
  std::memcpy(text_.data() + length_, text.data(), length);
  length_ += length;
}

void FaultLine::add(int64_t number) noexcept {
  std::array<char, 24> digits;
  const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), number).ptr;
  add(std::string_view(digits.data(), static_cast<std::size_t>(end - digits.data())));
}

void FaultLine::write() const noexcept {
  std::array<char, std::tuple_size_v<decltype(text_)>> whole = text_;
  whole[length_] = '\n';
  if (::write(STDERR_FILENO, whole.data(), length_ + 1) < 0) return;
}

void TensorRanges::add(std::string name, int64_t offset_bytes, int64_t size_bytes) {
  tensors_.push_back({std::move(name), offset_bytes, size_bytes});
}

void TensorRanges::describe(FaultLine& line, int64_t offset_bytes, std::string_view what) const noexcept {
  const auto after =
      std::upper_bound(tensors_.begin(), tensors_.end(), offset_bytes,
                       [](int64_t offset, const Tensor& tensor) { return offset < tensor.offset_bytes; });
  const Tensor& tensor = after == tensors_.begin() ? *after : *(after - 1);
  line.add(tensor.name);
  line.add(" was ");
  line.add(what);
  const int64_t into = offset_bytes - tensor.offset_bytes, beyond = into - tensor.size_bytes;
  if (into >= 0 && beyond < 0) return;
  line.add(" ");
  line.add(into < 0 ? -into : beyond);
  line.add(into < 0 ? " bytes before its beginning" : " bytes beyond its end");
}

FaultExplainer::FaultExplainer(const void* owner, Explain explains) : owner_(owner), explain_(explains) {
  for (auto& place : sources) {
    const FaultExplainer* expected = nullptr;
    if (place.compare_exchange_strong(expected, this)) break;
  }
}

FaultExplainer::~FaultExplainer() {
  for (auto& place : sources) {
    const FaultExplainer* expected = this;
    if (place.compare_exchange_strong(expected, nullptr)) break;
  }
}

void install_fault_names() {
  static std::once_flag once;  // a second installation would store this handler as the previous handler
  std::call_once(once, [] {
    install_handler(SIGSEGV, explain_and_forward);
    install_handler(SIGBUS, explain_and_forward);
  });
}

}  // namespace aliquot
