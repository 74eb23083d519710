#include "sharding/comm/run_on_all_or_throw.h"

#include <algorithm>
#include <fmt/format.h>
#include <new>

#include "kernels/system/checkpoint_error.h"

namespace aliquot {
namespace {

constexpr int kMaxNamedRanks = 8;

/// Marks an error that all ranks of a group have thrown. Its message already names the ranks that failed.
struct AgreedByGroup {};
template <typename Kind>
struct AgreedError final : Kind, AgreedByGroup {
  using Kind::Kind;
};

/// The outcome of the step on one rank: its result, or the exit code and message of its error.
struct Outcome {
  static constexpr std::size_t kHeadBytes = 2;

  ExitCode code = ExitCode::kDone;
  bool agreed = false;  // the error is an AgreedError of a smaller group
  std::string text;

  bool failed() const { return code != ExitCode::kDone; }
  friend bool operator==(const Outcome&, const Outcome&) = default;
};

bool succeeded(const std::string& packed) { return packed.at(0) == static_cast<char>(ExitCode::kDone); }

std::string pack(Outcome outcome) {
  return std::move(outcome.text.insert(0, {static_cast<char>(outcome.code), static_cast<char>(outcome.agreed)}));
}

Outcome unpack(const std::string& bytes) {
  return {static_cast<ExitCode>(bytes.at(0)), bytes.at(1) != 0, bytes.substr(Outcome::kHeadBytes)};
}

Outcome run_step(const std::function<std::string()>& step) {
  try {
    return {.text = step()};
  } catch (const CommunicationError&) {
    throw;
  } catch (const Error& error) {
    return {error.exit_code(), dynamic_cast<const AgreedByGroup*>(&error) != nullptr, error.what()};
  } catch (const std::bad_alloc&) {
    return {.code = ExitCode::kUnavailable, .text = "out of memory"};
  } catch (const std::exception& error) {
    return {.code = ExitCode::kFault, .text = error.what()};
  }
}

[[noreturn]] void throw_error(ExitCode code, const std::string& sentence) {
  switch (code) {
    case ExitCode::kUsage: throw AgreedError<UsageError>(sentence);
    case ExitCode::kUnavailable: throw AgreedError<UnavailableError>(sentence);
    case ExitCode::kFault: throw AgreedError<FaultError>(sentence);
    case ExitCode::kNotFinite: throw AgreedError<NotFiniteError>(sentence);
    case ExitCode::kCheckpoint: throw AgreedError<CheckpointError>(sentence);
    default: throw AgreedError<Error>(code, sentence);
  }
}

/// Returns the messages of all failed ranks, in rank order. If the ranks of a smaller group have already agreed on one
/// message, it appears once.
std::vector<std::string> error_messages(const StepGroup& ranks, const std::vector<Outcome>& outcomes) {
  std::vector<std::string> messages;
  for (std::size_t r = 0; r < outcomes.size(); ++r) {
    const Outcome& outcome = outcomes[r];
    if (!outcome.failed()) continue;
    if (!outcome.agreed) {
      messages.push_back(fmt::format("rank {}: {}", ranks.global_rank(static_cast<int>(r)), outcome.text));
    } else if (std::ranges::find(messages, outcome.text) == messages.end()) {
      messages.push_back(outcome.text);
    }
  }
  return messages;
}

[[noreturn]] void fail(const StepGroup& ranks, const std::vector<std::string>& gathered) {
  std::vector<Outcome> outcomes;
  for (const std::string& bytes : gathered) outcomes.push_back(unpack(bytes));
  const Outcome& first = *std::ranges::find_if(outcomes, &Outcome::failed);
  if (std::ranges::count(outcomes, first) == std::ssize(outcomes)) throw_error(first.code, first.text);
  const auto messages = error_messages(ranks, outcomes);
  const auto named = std::min<std::ptrdiff_t>(std::ssize(messages), kMaxNamedRanks);
  std::string message = fmt::format("{}", fmt::join(messages.begin(), messages.begin() + named, "; "));
  if (std::ssize(messages) > named) message += fmt::format("; and {} more ranks", std::ssize(messages) - named);
  throw_error(first.code, message);
}

}  // namespace

std::vector<std::string> gather_or_throw(const StepGroup& ranks, const std::function<std::string()>& step) {
  std::vector<std::string> results = ranks.gather(pack(run_step(step)));
  if (!std::ranges::all_of(results, succeeded)) fail(ranks, results);
  for (std::string& result : results) result.erase(0, Outcome::kHeadBytes);
  return results;
}

void run_on_all_or_throw(const StepGroup& ranks, const std::function<void()>& step) {
  gather_or_throw(ranks, [&] {
    step();
    return std::string();
  });
}

std::string broadcast_from_rank_0(const StepGroup& ranks, const std::function<std::string()>& step) {
  return gather_or_throw(ranks, [&] { return ranks.rank() == 0 ? step() : std::string(); })[0];
}

void expect_same_sizes(const StepGroup& ranks, const std::vector<std::string>& gathered, std::string_view owner) {
  for (std::size_t r = 1; r < gathered.size(); ++r) {
    if (gathered[r] == gathered[0]) continue;  // parsing the texts of thousands of ranks takes longer
    const auto theirs = std::stoll(gathered[r]), first = std::stoll(gathered[0]);
    if (theirs == first) continue;
    throw CommunicationError(fmt::format("ranks disagree about the size of {}: {} bytes on rank {}, {} on rank {}",
                                         owner, first, ranks.global_rank(0), theirs,
                                         ranks.global_rank(static_cast<int>(r))));
  }
}

}  // namespace aliquot
