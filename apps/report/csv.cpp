#include "apps/report/csv.h"

namespace aliquot {

std::vector<std::vector<std::string>> parse_csv(std::string_view text) {
  std::vector<std::vector<std::string>> rows;
  bool quoted = false, row_is_open = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (!row_is_open) {
      if (c == '\n') continue;
      rows.push_back({""});
      row_is_open = true;
    }
    if (c == '"') {
      const bool doubled = quoted && i + 1 < text.size() && text[i + 1] == '"';
      if (doubled) rows.back().back() += text[i++];
      if (!doubled) quoted = !quoted;
    } else if (c == ',' && !quoted) {
      rows.back().emplace_back();
    } else if (c == '\n' && !quoted) {
      row_is_open = false;
    } else if (c != '\r') {
      rows.back().back() += c;
    }
  }
  return rows;
}

}  // namespace aliquot
