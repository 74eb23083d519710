#!/usr/bin/env bash
# Tests that cases.awk counts the cases in GoogleTest's reports, and the skipped ones by reason.
# shellcheck source=tests/scripts/expect.sh
source "$(dirname "$0")/expect.sh"

cat >"$scratch/a.xml" <<'XML'
<testsuites tests="3" name="AllTests">
    <testcase name="Runs" file="a.cpp" line="3" status="run" result="completed" classname="Device" />
    <testcase name="One" file="a.cpp" line="4" status="run" result="skipped" classname="Device">
      <skipped message="a.cpp:4&#x0A;no &quot;GPU&quot; &amp; no&#x0A;driver"><![CDATA[a.cpp:4
    <testcase name="Two" file="a.cpp" line="5" status="run" result="skipped" classname="Device">
      <skipped message="a.cpp:5&#x0A;no &quot;GPU&quot; &amp; no&#x0A;driver"><![CDATA[a.cpp:5
XML
expect pass "3 GoogleTest cases, 2 of them skipped" awk -f "$top/scripts/cases.awk" "$scratch/a.xml"
expect pass '  2 of Device: no "GPU" & no driver' awk -f "$top/scripts/cases.awk" "$scratch/a.xml"
exit $((failures > 0))
