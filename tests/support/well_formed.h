#pragma once
// Checks that drawings and pages, which other programs open, are well-formed XML.

#include <string>
#include <string_view>

namespace aliquot::test {

/// Returns the first error and its position, or "". Supports tags, attributes, comments, the five named entities and
/// numeric entities, but not CDATA. A DOCTYPE may precede the root element.
std::string xml_problem(std::string_view text);

}  // namespace aliquot::test
