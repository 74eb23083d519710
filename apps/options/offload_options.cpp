#include "apps/options/offload_options.h"

#include <string_view>

#include "apps/options/values.h"
#include "kernels/system/error.h"

namespace aliquot {
namespace {

constexpr std::string_view kDisk = "disk:";

void set_offload(std::string& value, std::string_view text) {
  if (text == kDisk) throw UsageError("disk: wants a directory, as in disk:/scratch.");
  value = text.starts_with(kDisk) ? std::string(text) : parse_choice(text, {"none", "host", "disk:DIR"});
  if (value == "disk:DIR") throw UsageError("DIR stands for a directory, as in disk:/scratch.");
}

}  // namespace

void add_offload_options(OptionTable& t, OffloadOptions& o) {
  const auto offload = [&t](const char* name, std::string& value, const char* meaning) {
    t.add({name, "none|host|disk:DIR", meaning, false, [&value](std::string_view text) { set_offload(value, text); },
           [&value] { return Json(value); }});
  };
  offload("offload", o.offload, "Where optimizer state lives between uses.");
  offload("offload-parameters", o.offload_parameters, "Where parameter shards live between uses, at stage 3.");
}

Offload offload_kind(const std::string& value) {
  return value == "none" ? Offload::kNone : value == "host" ? Offload::kHost : Offload::kDisk;
}

std::string offload_directory(const std::string& value) {
  return value.starts_with(kDisk) ? value.substr(kDisk.size()) : "";
}

}  // namespace aliquot
