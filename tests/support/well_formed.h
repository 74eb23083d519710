#pragma once
// Checks that a text is well-formed XML, for drawings and pages that other programs open.

#include <string>
#include <string_view>

namespace aliquot::test {

/// The first error and its position, or an empty string. Supports tags, attributes, comments, the five named entities
/// and numeric ones, but not CDATA. A DOCTYPE may precede the one root element.
std::string xml_problem(std::string_view text);

}  // namespace aliquot::test
