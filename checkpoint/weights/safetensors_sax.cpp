#include "checkpoint/weights/safetensors_sax.h"

#include <fmt/format.h>

#include "checkpoint/file/tensor_entry.h"
#include "sharding/state.h"

namespace aliquot {
namespace {

// JSON's numbers are doubles to many readers; what passes this would mean other things to them.
constexpr uint64_t kMostInteger = uint64_t{1} << 53;
constexpr std::string_view kMetadataKey = "__metadata__";

}  // namespace

void SafetensorsSax::refuse() { throw SafetensorsDefect("holds a value of a kind that does not belong there"); }

SafetensorsHeader SafetensorsSax::take() {
  if (place_ != Place::kAfter) throw SafetensorsDefect("has a header that is cut short");
  return std::move(header_);
}

bool SafetensorsSax::number_unsigned(Json::number_unsigned_t value) {
  if (value > kMostInteger) throw SafetensorsDefect("holds an integer that is too large");
  const auto number = static_cast<int64_t>(value);
  if (place_ == Place::kShape) {
    if (tensor_.shape.size() == kShapeRankLimit) throw SafetensorsDefect("has a shape of too many extents");
    tensor_.shape.push_back(number);
  } else if (place_ == Place::kOffsets && offset_count_ < 2) {
    (offset_count_++ == 0 ? tensor_.begin : tensor_.end) = number;
  } else {
    refuse();
  }
  return true;
}

bool SafetensorsSax::string(std::string& value) {
  if (place_ == Place::kMetadata) {
    header_.metadata[key_] = value;
  } else if (place_ == Place::kTensor && field_ == kType) {
    tensor_.type = value;
    field_ = kNone;
  } else {
    refuse();
  }
  return true;
}

bool SafetensorsSax::start_object(size_t) {
  if (place_ == Place::kBefore) {
    place_ = Place::kTop;
  } else if (place_ == Place::kTop) {
    place_ = in_metadata_next_ ? Place::kMetadata : Place::kTensor;
    if (place_ == Place::kTensor) begin_tensor();
  } else {
    throw SafetensorsDefect("has a header that is nested too deeply");
  }
  return true;
}

void SafetensorsSax::begin_tensor() {
  tensor_ = {};
  tensor_.name = key_;
  fields_seen_ = 0;
  offset_count_ = 0;
  field_ = kNone;
}

bool SafetensorsSax::key(std::string& name) {
  if (place_ == Place::kTop) {
    in_metadata_next_ = name == kMetadataKey;
    if (!names_.insert(name).second) throw SafetensorsDefect(fmt::format("names {} twice", printable(name)));
  } else if (place_ == Place::kMetadata) {
    if (header_.metadata.contains(name)) throw SafetensorsDefect("has a key twice in its metadata");
  } else {
    field_ = name == "dtype" ? kType : name == "shape" ? kShapeField : name == "data_offsets" ? kOffsetsField : kNone;
    if (field_ == kNone) throw SafetensorsDefect(fmt::format("has an unknown key, {}", printable(name)));
    if ((fields_seen_ & field_) != 0) throw SafetensorsDefect("has a key twice in one tensor");
    fields_seen_ |= field_;
  }
  key_ = name;
  return true;
}

bool SafetensorsSax::end_object() {
  if (place_ == Place::kTop) {
    place_ = Place::kAfter;
    return true;
  }
  if (place_ == Place::kTensor) {
    if (fields_seen_ != kAllFields) {
      throw SafetensorsDefect(fmt::format("lacks type, shape or offsets of tensor {}", printable(tensor_.name)));
    }
    header_.tensors.push_back(std::move(tensor_));
  }
  place_ = Place::kTop;
  return true;
}

bool SafetensorsSax::start_array(size_t) {
  if (place_ != Place::kTensor || (field_ != kShapeField && field_ != kOffsetsField)) {
    throw SafetensorsDefect("has a list where none belongs");
  }
  place_ = field_ == kShapeField ? Place::kShape : Place::kOffsets;
  field_ = kNone;
  return true;
}

bool SafetensorsSax::end_array() {
  if (place_ == Place::kOffsets && offset_count_ != 2) throw SafetensorsDefect("gives a tensor other than two offsets");
  place_ = Place::kTensor;
  return true;
}

bool SafetensorsSax::parse_error(size_t position, const std::string&, const Json::exception&) {
  throw SafetensorsDefect(fmt::format("has a header that is not JSON (byte {})", position));
}

}  // namespace aliquot
