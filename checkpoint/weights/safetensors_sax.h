#pragma once
// The events of a safetensors header, taken as they come, so that a hostile header never becomes a tree in memory.
// Included by safetensors.cpp and its parts alone.

#include <nlohmann/json.hpp>
#include <set>
#include <stdexcept>
#include <string>

#include "checkpoint/weights/safetensors.h"

namespace aliquot {

/// What is wrong with a header: the end of a sentence that begins with the file's name.
struct SafetensorsFormatError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Handed to nlohmann's parser. Every callback throws SafetensorsFormatError for what does not belong where it stands.
class SafetensorsSax {
 public:
  using Json = nlohmann::json;

  /// The tensors in the file's order, once the parser has come to the end.
  SafetensorsHeader finish();

  bool null() { throw_unexpected_value(); }
  bool boolean(bool) { throw_unexpected_value(); }
  bool number_float(Json::number_float_t, const std::string&) { throw_unexpected_value(); }
  bool binary(Json::binary_t&) { throw_unexpected_value(); }
  bool number_integer(Json::number_integer_t) { throw SafetensorsFormatError("holds a negative number"); }
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
  bool metadata_is_next_ = false;  // the last key at the top was the metadata's
  std::string key_;
  Field field_ = kNone;       // what the value to come is
  unsigned fields_seen_ = 0;  // of the tensor that is open
  size_t offset_count_ = 0;
  std::set<std::string> names_;
  SafetensorsEntry tensor_;
  SafetensorsHeader header_;
};

}  // namespace aliquot
