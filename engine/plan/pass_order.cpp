#include "engine/plan/pass_order.h"

#include <algorithm>
#include <charconv>
#include <fmt/format.h>
#include <iterator>
#include <optional>
#include <utility>

#include "kernels/system/error.h"
#include "sharding/state_names.h"

namespace aliquot {
namespace {

constexpr std::string_view kLetters = "FBIW";  // in the order of PassKind

std::vector<PipelineAction> gpipe(int rank, int micro_batches) {
  std::vector<PipelineAction> actions;
  for (const PassKind pass : {PassKind::kForward, PassKind::kBackward}) {
    for (int m = 0; m < micro_batches; ++m) actions.push_back({rank, pass, m});
  }
  return actions;
}

/// Returns the passes of one rank of a 1F1B pipeline. Before the rank alternates between forward and backward, it runs
/// one forward pass for each later rank of the pipeline.
std::vector<PipelineAction> one_forward_one_backward(int rank, int ranks, int micro_batches) {
  const int ahead = std::min(ranks - 1 - rank, micro_batches);
  std::vector<PipelineAction> actions;
  for (int m = 0; m < ahead; ++m) actions.push_back({rank, PassKind::kForward, m});
  for (int m = 0; m < micro_batches; ++m) {
    if (m + ahead < micro_batches) actions.push_back({rank, PassKind::kForward, m + ahead});
    actions.push_back({rank, PassKind::kBackward, m});
  }
  return actions;
}

/// Returns all passes of one kind that a rank runs, in the order of the interleaved schedule.
std::vector<PipelineAction> interleaved_passes(int rank, PassKind pass, const PipelineShape& shape) {
  std::vector<PipelineAction> actions;
  for (int first = 0; first < shape.micro_batches; first += shape.ranks) {
    for (int v = 0; v < shape.virtual_stages; ++v) {
      const int number = pass == PassKind::kForward ? v : shape.virtual_stages - 1 - v;
      for (int m = first; m < first + shape.ranks; ++m) actions.push_back({number * shape.ranks + rank, pass, m});
    }
  }
  return actions;
}

/// Returns the passes of one rank of an interleaved pipeline. Before the rank alternates between forward and backward,
/// it runs the forward passes of one round for all virtual stages but the last. It also runs two more forward passes
/// for each later rank. In that time, data reaches the last rank and comes back before the first backward pass.
std::vector<PipelineAction> interleaved(int rank, const PipelineShape& shape) {
  const auto forward = interleaved_passes(rank, PassKind::kForward, shape);
  const auto backward = interleaved_passes(rank, PassKind::kBackward, shape);
  const int ahead = 2 * (shape.ranks - 1 - rank) + (shape.virtual_stages - 1) * shape.ranks;
  const auto first = std::min(static_cast<size_t>(ahead), forward.size());
  std::vector<PipelineAction> actions;
  const auto add = [&](const PipelineAction& action) {
    if (action.micro_batch < shape.micro_batches) actions.push_back(action);
  };
  for (size_t i = 0; i < first; ++i) add(forward[i]);
  for (size_t i = 0; i < backward.size(); ++i) {
    if (first + i < forward.size()) add(forward[first + i]);
    add(backward[i]);
  }
  return actions;
}

/// Returns the passes of one rank of a ZB-H1 pipeline: those of 1F1B, with backward passes in two parts.
std::vector<PipelineAction> zero_bubble(int rank, int ranks, int micro_batches) {
  std::vector<PipelineAction> actions;
  int next_weights = 0;
  for (const PipelineAction& action : one_forward_one_backward(rank, ranks, micro_batches)) {
    if (action.pass == PassKind::kForward) {
      actions.push_back(action);
      continue;
    }
    actions.push_back({rank, PassKind::kBackwardInput, action.micro_batch});
    if (action.micro_batch >= rank) actions.push_back({rank, PassKind::kBackwardWeights, next_weights++});
  }
  while (next_weights < micro_batches) actions.push_back({rank, PassKind::kBackwardWeights, next_weights++});
  return actions;
}

std::string_view without_blanks(std::string_view text) {
  constexpr std::string_view kBlanks = " \t\r";
  const auto begin = text.find_first_not_of(kBlanks);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kBlanks) - begin + 1);
}

/// Removes a decimal number from the front of `text`.
std::optional<int32_t> take_number(std::string_view& text) {
  int32_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || number < 0) return std::nullopt;
  text.remove_prefix(static_cast<size_t>(end - text.data()));
  return number;
}

std::optional<PipelineAction> parse_action(std::string_view text) {
  const auto stage = take_number(text);
  const auto letter = text.empty() ? std::string_view::npos : kLetters.find(text.front());
  if (!stage || letter == std::string_view::npos) return std::nullopt;
  text.remove_prefix(1);
  const auto micro_batch = take_number(text);
  if (!micro_batch || !text.empty()) return std::nullopt;
  return PipelineAction{*stage, static_cast<PassKind>(letter), *micro_batch};
}

/// Calls `each` for the parts of `text` between separators.
template <typename Each>
void split(std::string_view text, char separator, const Each& each) {
  while (true) {
    const auto end = std::min(text.find(separator), text.size());
    each(text.substr(0, end));
    if (end == text.size()) return;
    text.remove_prefix(end + 1);
  }
}

}  // namespace

PassOrder pass_order(PipelineSchedule schedule, int ranks, int micro_batches, int virtual_stages) {
  PassOrder order;
  for (int rank = 0; rank < ranks; ++rank) {
    switch (schedule) {
      case PipelineSchedule::kGpipe: order.push_back(gpipe(rank, micro_batches)); break;
      case PipelineSchedule::kAuto:
      case PipelineSchedule::k1F1B: order.push_back(one_forward_one_backward(rank, ranks, micro_batches)); break;
      case PipelineSchedule::kInterleaved:
        order.push_back(interleaved(rank, {ranks, micro_batches, virtual_stages}));
        break;
      case PipelineSchedule::kZeroBubble: order.push_back(zero_bubble(rank, ranks, micro_batches)); break;
    }
  }
  return order;
}

PassOrder with_whole_backwards(const PassOrder& order) {
  PassOrder all(order.size());
  for (std::size_t rank = 0; rank < order.size(); ++rank) {
    for (const PipelineAction& action : order[rank]) {
      const PipelineAction input{action.stage, PassKind::kBackwardInput, action.micro_batch};
      const bool follows = action.pass == PassKind::kBackwardWeights && !all[rank].empty() && all[rank].back() == input;
      if (follows && action.stage == 0) {
        all[rank].back().pass = PassKind::kBackward;
      } else {
        all[rank].push_back(action);
      }
    }
  }
  return all;
}

std::string name(const PipelineAction& action) {
  return fmt::format("{}{}{}", action.stage, kLetters[static_cast<size_t>(action.pass)], action.micro_batch);
}

std::string text(const PassOrder& order) {
  std::string lines;
  for (const auto& actions : order) {
    for (size_t i = 0; i < actions.size(); ++i) lines.append(i > 0 ? "," : "").append(name(actions[i]));
    lines += '\n';
  }
  return lines;
}

PassOrder parse_pass_order(std::string_view text) {
  PassOrder order;
  int line_number = 0;
  split(text, '\n', [&](std::string_view line) {
    ++line_number;
    if (without_blanks(line).empty()) return;
    auto& actions = order.emplace_back();
    split(line, ',', [&](std::string_view cell) {
      const std::string_view word = without_blanks(cell);
      if (word.empty()) return;
      const auto action = parse_action(word);
      if (!action)
        throw UsageError(
            fmt::format("line {}: invalid action '{}': expected a virtual stage, one of F, B, I and W, "
                        "and a micro-batch, such as 2F0",
                        line_number, printable(word.substr(0, 40))));
      actions.push_back(*action);
    });
  });
  return order;
}

int max_in_flight(const std::vector<PipelineAction>& actions) {
  return max_in_flight(actions, Receives(actions.size()));
}

int max_in_flight(const std::vector<PipelineAction>& actions, const Receives& receives) {
  int in_flight = 0, most = 0, received_ahead = 0;
  for (size_t i = 0; i < actions.size(); ++i) {
    const bool forward = actions[i].pass == PassKind::kForward;
    for (const PipelineAction& input : receives[i]) {
      if (input.pass != PassKind::kForward) continue;
      most = std::max(most, ++in_flight);
      ++received_ahead;
    }
    if (forward && received_ahead > 0) {
      --received_ahead;
    } else if (forward) {
      most = std::max(most, ++in_flight);
    }
    if (actions[i].pass == PassKind::kBackward || actions[i].pass == PassKind::kBackwardWeights) --in_flight;
  }
  return most;
}

int max_in_flight_of_a_stage(const std::vector<PipelineAction>& actions, const Receives& receives) {
  int most = 0;
  std::vector<int32_t> seen;
  for (const PipelineAction& each : actions) {
    const int32_t stage = each.stage;
    if (std::ranges::find(seen, stage) != seen.end()) continue;
    seen.push_back(stage);
    std::vector<PipelineAction> own;
    Receives own_receives;
    // Actions of `stage` whose inputs the rank received after the previous action of `stage`.
    std::vector<PipelineAction> waiting;
    for (size_t i = 0; i < actions.size(); ++i) {
      std::ranges::copy_if(receives[i], std::back_inserter(waiting), [&](auto& input) { return input.stage == stage; });
      if (actions[i].stage != stage) continue;
      own.push_back(actions[i]);
      own_receives.push_back(std::exchange(waiting, {}));
    }
    most = std::max(most, max_in_flight(own, own_receives));
  }
  return most;
}

}  // namespace aliquot
