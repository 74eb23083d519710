#pragma once
// Whether a text is well-formed XML: for drawings and pages that must open anywhere.

#include <string>
#include <string_view>

namespace aliquot::test {

/// Empty, or what is wrong and where. Knows tags, attributes, comments, the five named entities and numbered ones; not
/// CDATA. A DOCTYPE may stand before the one outermost element.
std::string xml_problem(std::string_view text);

}  // namespace aliquot::test
