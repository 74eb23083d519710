#include "engine/guard_range.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <fmt/format.h>
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

void say(const char* text) noexcept {
  if (write(STDERR_FILENO, text, std::strlen(text)) < 0) return;
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
  struct sigaction action {};
  action.sa_flags = SA_SIGINFO | SA_RESETHAND;
  action.sa_sigaction = [](int signal, siginfo_t* info, void*) {
    for (const auto& place : ranges) {
      const GuardRange* range = place.load();
      const char* name = range == nullptr ? nullptr : range->name_at(info->si_addr);
      if (name == nullptr) continue;
      say("aliquot: parameter ");
      say(name);
      say(" was touched outside a live scope: open unit.forward() or unit.backward() around its use, and keep no "
          "pointer beyond it\n");
    }
    sigaction(signal, &previous_actions[signal == SIGBUS], nullptr);
    raise(signal);
  };
  sigaction(SIGSEGV, &action, &previous_actions[0]);
  sigaction(SIGBUS, &action, &previous_actions[1]);
}

}  // namespace aliquot
