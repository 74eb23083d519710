#include "apps/checkpoints/tensor_list.h"

#include <algorithm>
#include <charconv>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <map>

#include "checkpoint/difference.h"

namespace aliquot {
namespace {

/// The parts of a path: `head`, the first number between two dots, `tail`, and the last part of optimizer state.
struct SplitPath {
  std::string head, tail, state;
  std::optional<int64_t> number;
};

SplitPath split(const std::string& path) {
  SplitPath parts{.head = path, .tail = {}, .state = {}, .number = {}};
  if (path.starts_with("optimizer/")) {
    const size_t slash = path.rfind('/');
    parts.state = path.substr(slash + 1);
    parts.head = path.substr(0, slash);
  }
  for (size_t dot = 0; (dot = parts.head.find('.', dot)) != std::string::npos; ++dot) {
    const char *begin = parts.head.data() + dot + 1, *end = parts.head.data() + parts.head.size();
    int64_t number = 0;
    const auto [rest, error] = std::from_chars(begin, end, number);
    if (error != std::errc() || number < 0 || rest == end || *rest != '.') continue;
    parts.number = number;
    parts.tail = std::string(rest, end);
    parts.head.resize(dot + 1);
    break;
  }
  return parts;
}

struct Group {
  SplitPath first;
  std::string type;
  std::vector<int64_t> numbers;
  std::vector<std::string> states;
  int count = 0;
};

template <typename T>
void add_once(std::vector<T>& values, const T& value) {
  if (std::ranges::find(values, value) == values.end()) values.push_back(value);
}

std::string range_text(std::vector<int64_t> numbers) {
  std::ranges::sort(numbers);
  if (numbers.size() == 1) return std::to_string(numbers[0]);
  const bool contiguous = numbers.back() - numbers.front() + 1 == std::ssize(numbers);
  return contiguous ? fmt::format("{{{}-{}}}", numbers.front(), numbers.back())
                    : fmt::format("{{{}}}", fmt::join(numbers, ","));
}

std::string line_of(const Group& group) {
  std::string path = printable(group.first.head);
  if (!group.numbers.empty()) path += range_text(group.numbers) + printable(group.first.tail);
  if (group.states.size() == 1) path += "/" + printable(group.states[0]);
  if (group.states.size() > 1) path += printable(fmt::format("/{{{}}}", fmt::join(group.states, ",")));
  return fmt::format("{}  {}{}", path, group.type, group.count == 1 ? "" : fmt::format("  ({} tensors)", group.count));
}

}  // namespace

std::vector<std::string> tensor_lines(const Manifest& manifest) {
  std::vector<std::string> lines;
  for (const TensorEntry& tensor : manifest.tensors)
    lines.push_back(fmt::format("{}  {}", printable(tensor.path), describe(tensor.dtype, tensor.shape)));
  return lines;
}

std::vector<std::string> grouped_tensor_lines(const Manifest& manifest) {
  std::vector<Group> groups;
  std::map<std::string, size_t> index;
  for (const TensorEntry& tensor : manifest.tensors) {
    SplitPath parts = split(tensor.path);
    const std::string type = describe(tensor.dtype, tensor.shape);
    const std::string key = fmt::format("{}\n{}\n{}\n{}", parts.head, parts.number.has_value(), parts.tail, type);
    const auto [found, is_new] = index.emplace(key, groups.size());
    if (is_new) groups.push_back({.first = parts, .type = type, .numbers = {}, .states = {}});
    Group& group = groups[found->second];
    if (parts.number) add_once(group.numbers, *parts.number);
    if (!parts.state.empty()) add_once(group.states, parts.state);
    ++group.count;
  }
  std::vector<std::string> lines;
  for (const Group& group : groups) lines.push_back(line_of(group));
  return lines;
}

}  // namespace aliquot
