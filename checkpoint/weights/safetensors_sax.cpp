#include "checkpoint/weights/safetensors_sax.h"

#include <fmt/format.h>

#include "checkpoint/file/tensor_entry.h"
#include "sharding/state.h"

namespace aliquot {
namespace {

// Many JSON parsers read numbers as doubles, which represent larger integers inexactly.
constexpr uint64_t kMaxInteger = uint64_t{1} << 53;
constexpr std::string_view kMetadataKey = "__metadata__";

}  // namespace

void SafetensorsSax::throw_unexpected_value() {
  throw SafetensorsFormatError("has a header with a value of an unexpected type");
}

SafetensorsHeader SafetensorsSax::finish() {
  if (context_ != Context::kEnd) throw SafetensorsFormatError("has a header that is truncated");
  return std::move(header_);
}

bool SafetensorsSax::number_unsigned(Json::number_unsigned_t value) {
  if (value > kMaxInteger) throw SafetensorsFormatError("has an integer above 2^53");
  const auto number = static_cast<int64_t>(value);
  if (context_ == Context::kShape) {
    if (tensor_.shape.size() == kShapeRankLimit)
      throw SafetensorsFormatError(fmt::format("has a shape of more than {} dimensions", kShapeRankLimit));
    tensor_.shape.push_back(number);
  } else if (context_ == Context::kOffsets && offset_count_ < 2) {
    (offset_count_++ == 0 ? tensor_.begin : tensor_.end) = number;
  } else {
    throw_unexpected_value();
  }
  return true;
}

bool SafetensorsSax::string(std::string& value) {
  if (context_ == Context::kMetadata) {
    header_.metadata[key_] = value;
  } else if (context_ == Context::kTensor && field_ == kType) {
    tensor_.type = value;
    field_ = kNone;
  } else {
    throw_unexpected_value();
  }
  return true;
}

bool SafetensorsSax::start_object(size_t) {
  if (context_ == Context::kStart) {
    context_ = Context::kTopLevel;
  } else if (context_ == Context::kTopLevel) {
    context_ = metadata_is_next_ ? Context::kMetadata : Context::kTensor;
    if (context_ == Context::kTensor) begin_tensor();
  } else {
    throw SafetensorsFormatError("has a header that is nested too deeply");
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
  if (context_ == Context::kTopLevel) {
    metadata_is_next_ = name == kMetadataKey;
    if (!names_.insert(name).second)
      throw SafetensorsFormatError(fmt::format("has two entries named {}", printable(name)));
  } else if (context_ == Context::kMetadata) {
    if (header_.metadata.contains(name)) throw SafetensorsFormatError("has a duplicate key in its metadata");
  } else {
    field_ = name == "dtype" ? kType : name == "shape" ? kShapeField : name == "data_offsets" ? kOffsetsField : kNone;
    if (field_ == kNone)
      throw SafetensorsFormatError(fmt::format("has an unknown key in a tensor: {}", printable(name)));
    if ((fields_seen_ & field_) != 0) throw SafetensorsFormatError("has a duplicate key in a tensor");
    fields_seen_ |= field_;
  }
  key_ = name;
  return true;
}

bool SafetensorsSax::end_object() {
  if (context_ == Context::kTopLevel) {
    context_ = Context::kEnd;
    return true;
  }
  if (context_ == Context::kTensor) {
    if (fields_seen_ != kAllFields) {
      throw SafetensorsFormatError(
          fmt::format("lacks dtype, shape or data_offsets of tensor {}", printable(tensor_.name)));
    }
    header_.tensors.push_back(std::move(tensor_));
  }
  context_ = Context::kTopLevel;
  return true;
}

bool SafetensorsSax::start_array(size_t) {
  if (context_ != Context::kTensor || (field_ != kShapeField && field_ != kOffsetsField)) {
    throw SafetensorsFormatError("has an array where another type is required");
  }
  context_ = field_ == kShapeField ? Context::kShape : Context::kOffsets;
  field_ = kNone;
  return true;
}

bool SafetensorsSax::end_array() {
  if (context_ == Context::kOffsets && offset_count_ != 2)
    throw SafetensorsFormatError("has a tensor whose data_offsets are not two numbers");
  context_ = Context::kTensor;
  return true;
}

bool SafetensorsSax::parse_error(size_t position, const std::string&, const Json::exception&) {
  throw SafetensorsFormatError(fmt::format("has a header that is not JSON: error at byte {}", position));
}

}  // namespace aliquot
