#include "sharding/flight/flight_file.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace aliquot {
namespace {

constexpr std::string_view kColumns =
    "#\tnumber\tgroup\tlane\tsequence\toperation\tpacked\tunit\tstep\tissued\tbegun\tended";
constexpr std::string_view kRendezvousColumns = "#\tafter\tgroup\tsequence\tpurpose\tstep\tbegun\tended";
constexpr std::string_view kModelCodeColumns = "#\tmodel\tmicro-batch\tstep\tbegun\tended";

std::string seconds(double value) { return value < 0 ? "-" : fmt::format("{:.6f}", value); }

/// Returns a text such as "pipeline=2 replica=1 shard=4 tensor=1".
std::string dimensions_text(const std::array<int, 4>& numbers) {
  std::vector<std::string> words;
  for (std::size_t i = 0; i < numbers.size(); ++i)
    words.push_back(fmt::format("{}={}", FlightMesh::kDimensions[i], numbers[i]));
  return fmt::format("{}", fmt::join(words, " "));
}

/// Returns the lines of the record about the mesh and the groups.
std::string groups_text(const FlightRecord& record) {
  std::string text;
  if (record.mesh)
    text = fmt::format("mesh\t{}\ncoordinates\t{}\n", dimensions_text(record.mesh->counts),
                       dimensions_text(record.mesh->coordinates));
  for (std::size_t g = 0; g < record.groups.size(); ++g) {
    text += fmt::format("group\t{}\n", fmt::join(record.groups[g], " "));
    if (g < record.group_names.size() && !record.group_names[g].empty())
      text += fmt::format("group-name\t{}\n", replace_control_characters(record.group_names[g]));
  }
  return text;
}

}  // namespace

// Terminals interpret the control characters of ASCII and also those of Latin-1, which are two bytes in UTF-8.
std::string replace_control_characters(std::string_view text) {
  std::string line(text);
  const auto byte = [&line](std::size_t at) { return static_cast<unsigned char>(line[at]); };
  for (std::size_t i = 0; i < line.size(); ++i) {
    if (byte(i) < ' ' || byte(i) == 0x7F) line[i] = ' ';
    if (byte(i) != 0xC2 || i + 1 == line.size() || byte(i + 1) < 0x80 || byte(i + 1) > 0x9F) continue;
    line[i] = line[i + 1] = ' ';
  }
  return line;
}

std::string flight_text(const FlightRecord& record) {
  std::string text = fmt::format("{}\nrun\t{}\nrank\t{}\nranks\t{}\nwhy\t{}\nplace\t{}\nwritten\t{}\n", kFlightTitle,
                                 replace_control_characters(record.run), record.rank, record.rank_count,
                                 replace_control_characters(record.why), replace_control_characters(record.place),
                                 seconds(record.written));
  if (!record.written_utc.empty()) text += fmt::format("utc\t{}\n", record.written_utc);
  text += groups_text(record);
  text += fmt::format("{}\n", kColumns);
  for (const FlightEntry& entry : record.entries) {
    text += fmt::format("collective\t{}\t{}\t{}\t{}\t{}\t{:016x}\t{}\t{}\t{}\t{}\t{}\n", entry.number, entry.group,
                        name(entry.lane), entry.sequence, entry.what.text(), entry.what.packed(),
                        replace_control_characters(entry.unit), entry.step, seconds(entry.issued), seconds(entry.begun),
                        seconds(entry.ended));
  }
  if (!record.rendezvous.empty()) text += fmt::format("{}\n", kRendezvousColumns);
  for (const FlightEntry& rendezvous : record.rendezvous) {
    text += fmt::format("meeting\t{}\t{}\t{}\t{}\t{}\t{}\t{}\n", rendezvous.number, rendezvous.group,
                        rendezvous.sequence, replace_control_characters(rendezvous.unit), rendezvous.step,
                        seconds(rendezvous.begun), seconds(rendezvous.ended));
  }
  if (!record.model_code.empty()) text += fmt::format("{}\n", kModelCodeColumns);
  for (const FlightModelCode& code : record.model_code) {
    text += fmt::format("model\t{}\t{}\t{}\t{}\t{}\n", replace_control_characters(code.what), code.micro_batch,
                        code.step, seconds(code.begun), seconds(code.ended));
  }
  if (record.complete) text += fmt::format("end\t{}\n", record.entries.size() + record.rendezvous.size());
  return text;
}

}  // namespace aliquot
