#pragma once
// A SAX parser of safetensors headers. It builds no JSON tree, so the memory that a malicious header can use is bounded
// by its size. Only safetensors.cpp and safetensors_sax.cpp include this file.

#include <nlohmann/json.hpp>
#include <set>
#include <stdexcept>
#include <string>

#include "checkpoint/weights/safetensors.h"

namespace aliquot {

/// A defect of a header. what() is a predicate such as "has two entries named w": the code that catches it puts the
/// file name before it.
struct SafetensorsFormatError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Receives the events of nlohmann::json::sax_parse(). A callback throws SafetensorsFormatError if its event is invalid
/// in the current context.
class SafetensorsSax {
 public:
  using Json = nlohmann::json;

  /// Returns the tensors in the order of the header. Must be called after parsing. Throws if the header is incomplete.
  SafetensorsHeader finish();

  bool null() { throw_unexpected_value(); }
  bool boolean(bool) { throw_unexpected_value(); }
  bool number_float(Json::number_float_t, const std::string&) { throw_unexpected_value(); }
  bool binary(Json::binary_t&) { throw_unexpected_value(); }
  bool number_integer(Json::number_integer_t) { throw SafetensorsFormatError("has a negative number"); }
  bool number_unsigned(Json::number_unsigned_t value);
  bool string(std::string& value);
  bool start_object(size_t);
  bool key(std::string& name);
  bool end_object();
  bool start_array(size_t);
  bool end_array();
  bool parse_error(size_t position, const std::string& token, const Json::exception&);

 private:
  enum class Context { kStart, kTopLevel, kMetadata, kTensor, kShape, kOffsets, kEnd };
  enum Field : unsigned { kNone = 0, kType = 1, kShapeField = 2, kOffsetsField = 4, kAllFields = 7 };

  [[noreturn]] static void throw_unexpected_value();
  void begin_tensor();

  Context context_ = Context::kStart;
  bool metadata_is_next_ = false;  // the last key at the top level was __metadata__
  std::string key_;
  Field field_ = kNone;       // the field to which the next value belongs
  unsigned fields_seen_ = 0;  // bit mask of Field, for the current tensor
  size_t offset_count_ = 0;
  std::set<std::string> names_;
  SafetensorsEntry tensor_;
  SafetensorsHeader header_;
};

}  // namespace aliquot
