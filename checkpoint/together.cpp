#include "checkpoint/together.h"

#include <algorithm>
#include <exception>
#include <fmt/format.h>
#include <new>

#include "checkpoint/checkpoint_error.h"

namespace aliquot {
namespace {

// The first byte of what a rank hands in: kWorked, then its result; or the exit code of its error, then the sentence.
constexpr char kWorked = 0;

std::string run(const std::function<std::string()>& step) {
  const auto failure = [](ExitCode code, const char* sentence) {
    return static_cast<char>(code) + std::string(sentence);
  };
  try {
    return kWorked + step();
  } catch (const CommunicationError&) {
    throw;
  } catch (const Error& error) {
    return failure(error.exit_code(), error.what());
  } catch (const std::bad_alloc&) {
    return failure(ExitCode::kFault, "out of memory");
  } catch (const std::exception& error) {
    return failure(ExitCode::kFault, error.what());
  }
}

[[noreturn]] void throw_as(ExitCode code, const std::string& sentence) {
  switch (code) {
    case ExitCode::kUsage: throw UsageError(sentence);
    case ExitCode::kUnavailable: throw UnavailableError(sentence);
    case ExitCode::kFault: throw FaultError(sentence);
    case ExitCode::kCheckpoint: throw CheckpointError(sentence);
    default: throw Error(code, sentence);
  }
}

[[noreturn]] void fail(const std::vector<std::string>& results) {
  const auto failed = [](const std::string& result) { return result.empty() || result[0] != kWorked; };
  const auto first = std::find_if(results.begin(), results.end(), failed);
  const auto code = first->empty() ? ExitCode::kFault : static_cast<ExitCode>((*first)[0]);
  const std::string_view sentence = first->empty() ? "" : std::string_view(*first).substr(1);
  if (std::all_of(results.begin(), results.end(), [&](const std::string& result) { return result == *first; })) {
    throw_as(code, std::string(sentence));
  }
  constexpr int kTold = 8;
  int count = 0;
  std::string message;
  for (size_t rank = 0; rank < results.size(); ++rank) {
    if (!failed(results[rank])) continue;
    if (++count > kTold) continue;
    message += fmt::format("{}rank {}: {}", message.empty() ? "" : "; ", rank, results[rank].substr(1));
  }
  if (count > kTold) message += fmt::format("; and {} ranks more", count - kTold);
  throw_as(code, message);
}

}  // namespace

std::vector<std::string> together(Communicator& communicator, const std::function<std::string()>& step) {
  std::vector<std::string> results = communicator.gather_objects(run(step));
  if (!std::all_of(results.begin(), results.end(),
                   [](const auto& each) { return !each.empty() && each[0] == kWorked; })) {
    fail(results);
  }
  for (std::string& result : results) result.erase(0, 1);
  return results;
}

void all_or_none(Communicator& communicator, const std::function<void()>& step) {
  together(communicator, [&] {
    step();
    return std::string();
  });
}

std::string from_rank_0(Communicator& communicator, const std::function<std::string()>& step) {
  auto results = together(communicator, [&] { return communicator.rank() == 0 ? step() : std::string(); });
  return std::move(results[0]);
}

}  // namespace aliquot
